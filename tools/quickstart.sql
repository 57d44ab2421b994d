-- What `make quickstart` runs: a small table of tickets and mails, and the model asked about them in plain SQL.
-- Every statement can be run again by hand.
\set QUIET on
\pset pager off
\pset footer off
\pset border 1
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS quickstart CASCADE;
CREATE SCHEMA quickstart;

CREATE TABLE quickstart.tickets (
	id integer PRIMARY KEY,
	opened date NOT NULL,
	customer text NOT NULL,
	body text NOT NULL
);
INSERT INTO quickstart.tickets VALUES
	(1041, '2026-03-02', 'Hartmann Logistics',
	 'Since the update on Friday our label printer in hall 3 prints every label twice. We have restarted the printer and the client. The printers in halls 1 and 2 are fine. About 400 parcels a day are affected.'),
	(1042, '2026-03-02', 'Delgado Dental',
	 'I was charged 89.00 EUR twice for the February invoice (no. 2026-0213). Please refund one of the two payments to the card that ends in 4471.'),
	(1043, '2026-03-03', 'Nordlys Hotel',
	 'Guests cannot log in to the wireless network on the second floor. The login page opens, but after the room number it says "session expired". The first floor works.'),
	(1044, '2026-03-03', 'Okafor & Sons',
	 'How can I add a second user who may see the reports but not change the prices? I looked under Settings, Team, and found only the role "admin".'),
	(1045, '2026-03-04', 'Hartmann Logistics',
	 'Following up on 1041: the double labels stopped after your colleague rolled back driver 5.2. Thank you, this can be closed.'),
	(1046, '2026-03-04', 'Bright Minds School',
	 'The export of the class list to a spreadsheet stops at row 500. We have 1,214 pupils. We need the full list by Thursday for the bus company.'),
	(1047, '2026-03-05', 'Velvet Bakery',
	 'Please cancel our subscription at the end of the month and confirm by mail. We are closing the shop after 31 years. It was always a pleasure to work with you.'),
	(1048, '2026-03-05', 'Nordlys Hotel',
	 'URGENT. The booking page is down since 06:40, error 502. We lose reservations every minute. Call me at any time: Ingrid Moen, front desk.');

CREATE TABLE quickstart.mails (
	id integer PRIMARY KEY,
	sender text NOT NULL,
	subject text NOT NULL,
	body text NOT NULL
);
INSERT INTO quickstart.mails VALUES
	(1, 'ana.pereira@example.com', 'Moving the review',
	 'Hi Tom, the design review on Tuesday collides with the plant visit. Could we move it to Wednesday 10:00? Room 4.12 is free. I have sent the drawings to Luis already. Best, Ana'),
	(2, 'billing@example.net', 'Invoice 77120',
	 'Dear customer, invoice 77120 of 14 February over 1,240.50 EUR is still open. Please transfer the amount by 15 March, or tell us if you have paid in the meantime.'),
	(3, 'j.kowalski@example.org', 'Broken on arrival',
	 'Good morning, the espresso machine from order A-5531 arrived with a cracked water tank. Photos are attached. I would like a new tank rather than a refund. Jan Kowalski'),
	(4, 'hr@example.com', 'Welcome Priya',
	 'All, please welcome Priya Raman, who joins the data team on Monday. She comes from the weather service and will work on the forecast of spare parts. Lunch is at 12:30.'),
	(5, 'ops@example.com', 'Water in the server room',
	 'The sensor under rack 7 reported water at 03:12. Facility closed the valve at 03:40. No machine was damaged. The pipe will be replaced today, so the cooling runs at half power until 16:00.'),
	(6, 'mia.chen@example.com', 'Question about the contract',
	 'Hello, section 8 says three months of notice, but the offer of 3 January said one month. Which one is right? I would like to sign this week. Kind regards, Mia Chen');

-- Long answers in lines that fit a terminal.
CREATE FUNCTION quickstart.wrap(answer text) RETURNS text LANGUAGE sql IMMUTABLE
	AS $$ SELECT regexp_replace(btrim(answer, E' \n'), '([^\n]{60,76}) ', E'\\1\n', 'g') $$;

\set ECHO queries
\echo '---- Is the engine there?'
SELECT state, model, device, restarts FROM dsv3_health();

\echo '---- Summaries of tickets. The instruction is one argument, the data another.'
SELECT id, quickstart.wrap(dsv3_generate(body,
			system => 'Provide a concise, objective summary of the input text in one sentence, focusing on key actions.',
			max_tokens => 40)) AS summary
FROM quickstart.tickets ORDER BY id;

\echo '---- What do people want?'
SELECT sender, quickstart.wrap(dsv3_generate('What does the writer of this mail want? Answer in one sentence.',
			input => body, max_tokens => 40)) AS wish
FROM quickstart.mails WHERE id IN (1, 3) ORDER BY id;

\echo '---- Data out of text. The form always follows the schema; how good the content is depends on the model.'
SELECT id, dsv3_extract_json(body, '{"type": "object", "required": ["person"], "properties":
		{"person": {"type": "string", "maxLength": 40}}}') AS extracted
FROM quickstart.mails WHERE id IN (4, 6) ORDER BY id;

\echo '---- A conversation: messages in, one message out.'
SELECT quickstart.wrap(dsv3_chat('[{"role": "user", "content": "What is the capital of Norway?"},
		{"role": "assistant", "content": "The capital of Norway is Oslo."},
		{"role": "user", "content": "And of Denmark?"}]', max_tokens => 20) ->> 'content') AS reply;

\echo '---- What the mails cost in tokens, before anything is asked.'
SELECT sum(length(body)) AS characters, sum(dsv3_count_tokens(body)) AS tokens FROM quickstart.mails;
