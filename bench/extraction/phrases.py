#!/usr/bin/env python3
"""
phrases.py

Documents with marks (labels.py) put together from hand-written phrases: one function for each schema, document(schema, rng) chooses.
A phrase mentions a field or leaves it out, so that each field is missing in a part of the documents; order, wording, spelling of dates and
amounts vary. Two in twelve documents are in another language than English, from phrases of that language.
"""
import datetime

FIRST = "Ada Bruno Chidi Dora Emil Farah Goran Hilde Ivo Jana Kofi Lucía Malik Noor Otto Priya Quentin Rhea Sami Tove Una Viktor Wanda Yara".split()
LAST = ("Abbott Brandauer Castell Dlamini Eklund Fournier Grigg Haddad Ingram Jansen Kowal Lindqvist Mbeki Nagy O'Dwyer Petrov Quist Rossi "
        "Sharma Tanaka Ueda Varga Whitlock Ziegler").split()
COMPANY_A = "Alder Birchwood Copperline Driftmoor Eastgate Foxglove Granite Hollis Ironbridge Juniper Kestrel Larkfield Northlight Oakhurst".split()
COMPANY_B = ["Foods", "Logistics", "Optics", "Instruments", "& Sons", "Textiles", "Robotics", "Paper", "Energy", "Studios", "GmbH", "Ltd"]
CITY = ("Aarhus Bilbao Cardiff Dresden Exeter Florence Ghent Hobart Innsbruck Jena Kyoto Lausanne Malmö Nantes Ostrava Porto Quito Riga "
        "Seville Trieste Utrecht Valencia Wrocław Zagreb").split()
STREET = ["Baker's Row", "Canal Street", "Dyer Lane", "Elm Grove", "Foundry Road", "Garden Walk", "Hill View", "Orchard Close"]
PRODUCT = ["Tarn water bottle", "Lumo reading lamp", "Fjell rain coat", "Kite 5 router", "Ember toaster", "Brisa fan", "Moss door mat", "Vento hair dryer",
           "Pebble speaker", "Slate notebook stand", "Harrow garden fork", "Cirrus pillow", "Onda electric toothbrush", "Quarto e-reader"]
MONTH = {
    "en": "January February March April May June July August September October November December".split(),
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre".split(),
}
SYMBOL = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}


class Words:
    """The choices of one document."""

    def __init__(self, rng, language="en"):
        self.rng = rng
        self.language = language
        self.taken = set()

    def one(self, *options):
        return self.rng.choice(options)

    def maybe(self, *options, chance=0.6):
        return self.rng.choice(options) if self.rng.random() < chance else ""

    def fresh(self, make):
        """Something that this document has not used."""
        while True:
            made = make()
            if made not in self.taken:
                self.taken.add(made)
                return made

    def name(self):
        return self.fresh(lambda: f"{self.rng.choice(FIRST)} {self.rng.choice(LAST)}")

    def company(self):
        return self.fresh(lambda: f"{self.rng.choice(COMPANY_A)} {self.rng.choice(COMPANY_B)}")

    def city(self):
        return self.fresh(lambda: self.rng.choice(CITY))

    def product(self):
        return self.fresh(lambda: self.rng.choice(PRODUCT))

    def some(self, options, low, high):
        return self.rng.sample(options, self.rng.randint(low, min(high, len(options))))

    def code(self, shape):
        """A for a letter, 9 for a digit."""
        return "".join(self.rng.choice("ABCDEFGHKLMNPRSTVXZ") if c == "A" else str(self.rng.randint(1, 9)) if c == "9" else c for c in shape)

    def day(self, low=0, high=330):
        return datetime.date(2026, 1, 4) + datetime.timedelta(days=self.rng.randint(low, high))

    def spell(self, day):
        month = MONTH[self.language][day.month - 1]
        if self.language == "de":
            return self.one(f"{day.day}. {month} {day.year}", f"{day.day:02}.{day.month:02}.{day.year}")
        if self.language == "fr":
            return f"{day.day}{'er' if day.day == 1 else ''} {month} {day.year}"
        if self.language == "es":
            return f"{day.day} de {month} de {day.year}"
        forms = [f"{day.day} {month} {day.year}", f"{month} {day.day}, {day.year}", f"{day.day} {month[:3]} {day.year}", day.isoformat()]
        if day.day > 12:
            forms.append(f"{day.day:02}/{day.month:02}/{day.year}")
        return self.rng.choice(forms)

    def date(self, path, day=None):
        day = day or self.day()
        return f"{{{path}={day.isoformat()}~{self.spell(day)}}}"

    def figure(self, value):
        text = f"{value:,.2f}" if value != int(value) or value < 1000 and self.rng.random() < 0.4 else f"{int(value):,}"
        if self.language == "en":
            return text
        return text.translate(str.maketrans(",.", " ," if self.language == "fr" else ".,"))

    def amount(self, path, value):
        return f"{{{path}={value:g}~{self.figure(value)}}}" if value < 100000 else f"{{{path}={int(value)}~{self.figure(value)}}}"

    def money(self, path, currency_path, value, currency):
        figure = self.figure(value)
        sign = SYMBOL.get(currency)
        forms = [f"{figure} {currency}"] if self.language != "en" else [f"{figure} {currency}", f"{currency} {figure}"]
        if sign:
            forms.append(f"{figure} {sign}" if self.language != "en" else f"{sign}{figure}")
        if currency == "EUR" and self.language in ("en", "fr"):
            forms.append(f"{figure} euros")
        return f"{{{path}={round(value, 2)!r};{currency_path}={currency}~{self.rng.choice(forms)}}}"

    def currency(self):
        return self.one("EUR", "EUR", "USD", "GBP", "CHF")

    def clock(self, path):
        hour, minute = self.rng.randint(7, 21), self.rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50])
        if self.language == "en" and hour > 12 and self.rng.random() < 0.3:
            shown = f"{hour - 12}:{minute:02} pm" if minute else f"{hour - 12} pm"
            return f"{{{path}={hour:02}:{minute:02}~{shown}}}"
        return f"{{{path}={hour:02}:{minute:02}}}"

    def join(self, *parts, shuffle=False):
        parts = [part for part in parts if part]
        if shuffle:
            self.rng.shuffle(parts)
        return " ".join(parts)

    def listing(self, marks, word="and"):
        if len(marks) < 2:
            return "".join(marks)
        return ", ".join(marks[:-1]) + f" {word} " + marks[-1]


def cents(rng, low, high):
    return rng.randint(low * 100, high * 100) / 100


def marks(path, values):
    return [f"{{{path}.{index}={value}}}" for index, value in enumerate(values)]


def support_ticket(w):
    product, customer = w.product(), w.name()
    if w.language == "de":
        return w.join(w.one("Hallo,", "Sehr geehrte Damen und Herren,"),
                      w.one("mein {product=%s} {category=defect~lässt sich nicht mehr einschalten}.", "die Lieferung meines {product=%s} {category=delivery~ist seit Tagen überfällig}.",
                            "zum {product=%s} habe ich {category=question~eine Frage}: passt das Zubehör des Vorgängers?") % product,
                      w.maybe("{urgency=high~Bitte sofort antworten.}", "{urgency=low~Das hat keine Eile.}"), w.maybe("Bestellung {order_number=%s}." % w.code("DE-9999")),
                      w.maybe("{wants_refund=true~Ich möchte mein Geld zurück.}", chance=0.3), f"{{customer={customer}}}")
    problem = w.one(
        "The {product=%s} {category=defect~arrived with a crack}.", "My {product=%s} {category=defect~makes a grinding noise} and then stops.", "{category=defect~A part is missing} from the {product=%s}.",
        "I am waiting for the {product=%s}, which {category=delivery~has not turned up}.", "The courier {category=delivery~left the parcel in the rain}; the {product=%s} is soaked.",
        "The {product=%s} {category=billing~cost more on the receipt than in the shop}.", "You {category=billing~billed me for two} though I bought one {product=%s}.",
        "{category=account~My password is not accepted} when I try to register the {product=%s}.", "{category=question~Is there a cover} for the {product=%s}?", "{category=question~How long is the warranty} on the {product=%s}?") % product
    order = w.code(w.one("99999", "AA-9999", "9999-A", "A9999"))
    return w.join(w.maybe("Hello,", "Hi there,", "Dear team,", "Good morning."), problem, w.maybe(f"Order {{order_number={order}}}.", f"(My order number: {{order_number={order}}})"),
                  w.maybe("{urgency=high~I need an answer today.}", "{urgency=high~This is really urgent.}", "{urgency=low~Whenever you find the time.}", "{urgency=normal~An answer this week would be fine.}", chance=0.5),
                  w.maybe("{wants_refund=true~I want a refund.}", "{wants_refund=true~Please give me my money back.}", "{wants_refund=false~A refund is not what I am after.}", chance=0.45),
                  w.maybe("I am away at the weekend.", "We have been customers for years.", chance=0.3), w.maybe(f"{{customer={customer}}}", f"Kind regards, {{customer={customer}}}"))


def support_contact(w):
    name, company = w.name(), w.company()
    last = name.split()[1].replace("'", "").lower()
    domain = company.split()[0].lower()
    mail, phone = f"{last}@{domain}.example", w.code(w.one("+44 99 9999 9999", "099 999 999", "+1 999-999-9999"))
    if w.language == "fr":
        return w.join(f"Bonjour, je suis {{name={name}}}" + w.maybe(f" de {{company={company}}}") + ".", w.maybe(f"Mon adresse : {{email={mail}}}."), w.maybe(f"Mon numéro : {{phone={phone}}}."),
                      w.maybe("{callback=true~Merci de me rappeler.}", "{callback=false~Ne m'appelez pas, écrivez-moi.}"))
    return w.join(w.one(f"This is {{name={name}}}.", f"My name is {{name={name}}}.", f"{{name={name}}} here.", "Me again."), w.maybe(f"I write for {{company={company}}}.", f"{{company={company}}} is my employer."),
                  w.maybe(f"Mail: {{email={mail}}}.", f"Answers to {{email={mail}}}, please."), w.maybe(f"Tel. {{phone={phone}}}.", f"My phone: {{phone={phone}}}."),
                  w.maybe("{callback=true~Please ring me.}", "{callback=true~A call would be best.}", "{callback=false~I'd rather not be called.}", "{callback=false~In writing only, please.}", chance=0.5))


def invoice(w):
    net, currency, seller = cents(w.rng, 40, 4000), w.currency(), w.company()
    tax = round(net * 0.2, 2)
    issued = w.day(0, 250)
    due = issued + datetime.timedelta(days=w.one(10, 14, 30))
    number = w.code(w.one("2026-999", "R9999", "A-9999/26", "INV 99999"))
    if w.language == "de":
        return w.join(f"Rechnung {{number={number}}} vom {w.date('issued', issued)}.", f"Gesamtbetrag: {w.money('total', 'currency', net + tax, currency)}.", w.maybe(f"Darin enthalten sind {w.amount('tax', tax)} Umsatzsteuer."),
                      w.maybe(f"Bitte zahlen Sie bis {w.date('due', due)}."), w.maybe("{paid=true~Betrag dankend erhalten.}", chance=0.3), w.maybe(f"{{seller={seller}}}"))
    return w.join(w.one(f"Invoice {{number={number}}}", f"Invoice no. {{number={number}}}", "Invoice") + w.one(f", {w.date('issued', issued)}.", f" of {w.date('issued', issued)}.", "."), w.maybe(f"From: {{seller={seller}}}."),
                  w.maybe(f"Net amount {w.amount('net', net)}, tax {w.amount('tax', tax)}.", f"Net amount {w.amount('net', net)}."), w.one(f"Total {w.money('total', 'currency', net + tax, currency)}.", f"Please pay {w.money('total', 'currency', net + tax, currency)}."),
                  w.maybe(f"Due {w.date('due', due)}.", f"We expect the money by {w.date('due', due)}.", "Payable on receipt."), w.maybe("{paid=true~Paid in full.}", "{paid=false~Payment has not reached us.}", chance=0.35))


def invoice_lines(w):
    goods = w.some(["printer paper", "sharpening of knives", "garden soil 40 l", "replacement hinge", "LED strip", "site visit", "hourly labour", "paint, white", "packing", "copper pipe 15 mm"], 1, 4)
    if w.language == "de":
        goods = w.some(["Druckerpapier", "Scharnier", "Wandfarbe weiß", "Kupferrohr 15 mm", "Verpackung", "Gartenerde"], 1, 3)
    lines, total = [], 0
    for index, article in enumerate(goods):
        quantity, price = w.rng.randint(2, 30), cents(w.rng, 1, 90)
        amount = round(quantity * price, 2)
        total += amount
        at = f"lines.{index}"
        if w.language == "de":
            lines.append(w.one(f"{{{at}.quantity={quantity}}} x {{{at}.description={article}}} zu je {w.amount(at + '.unit_price', price)}", f"{{{at}.description={article}}}: {w.amount(at + '.amount', amount)}"))
            continue
        lines.append(w.one(f"{{{at}.quantity={quantity}}} x {{{at}.description={article}}} @ {w.amount(at + '.unit_price', price)} = {w.amount(at + '.amount', amount)}",
                           f"{{{at}.description={article}}}, quantity {{{at}.quantity={quantity}}}, price {w.amount(at + '.unit_price', price)}", f"{{{at}.description={article}}}: {w.amount(at + '.amount', amount)}"))
    break_ = w.one("\n", "; ")
    head = "Rechnung" if w.language == "de" else w.one("Invoice", "Bill", "Statement")
    sums = "Summe" if w.language == "de" else w.one("Total", "Sum", "Amount due")
    return head + w.one(f" {{number={w.code('99-999')}}}", "") + break_ + break_.join(lines) + w.maybe(f"{break_}{sums}: {w.amount('total', round(total, 2))}")


def order(w):
    goods = w.some(["bath towels", "cork coasters", "wool socks", "tea tins", "wooden spoons", "bed sheets", "fountain pens", "picture frames", "candles", "work gloves"], 1, 3)
    if w.language == "fr":
        goods = w.some(["bougies", "cadres", "serviettes de bain", "gants de jardin", "boîtes à thé"], 1, 3)
    variants = ["42", "XXL", "38"] if w.language == "fr" else ["XL", "small", "navy", "olive", "42", "ivory"]
    items = []
    for index, article in enumerate(goods):
        size = w.maybe(f"{' en' if w.language == 'fr' else ' in'} {{items.{index}.size={w.rng.choice(variants)}}}", chance=0.35)
        items.append(f"{{items.{index}.quantity={w.rng.randint(2, 60)}}} {{items.{index}.article={article}}}{size}")
    street, city, customer = f"{w.rng.randint(2, 99)} {w.rng.choice(STREET)}", w.city(), w.name()
    if w.language == "fr":
        return w.join(f"Bonjour, je voudrais commander {w.listing(items, 'et')}.", w.maybe(f"Livraison à {{ship_to.city={city}}}."), w.maybe("{express=true~Le plus vite possible, en express.}", chance=0.4), f"{{customer={customer}}}")
    return w.join(w.one(f"Please send me {w.listing(items)}.", f"We order {w.listing(items)}.", f"Order {{order_number={w.code('A-99999')}}}: {w.listing(items)}.", f"I'd like {w.listing(items)}, please."),
                  w.maybe(f"Deliver to {{ship_to.street={street}}}, {{ship_to.city={city}}}.", f"Ship to {{ship_to.city={city}}}.", f"Address: {{ship_to.street={street}}}, {{ship_to.postcode={w.code('99999')}}} {{ship_to.city={city}}}."),
                  w.maybe("{express=true~Express, please.}", "{express=true~It must be here tomorrow.}", "{express=false~Standard shipping will do.}", chance=0.45), w.maybe(f"{{customer={customer}}}", f"Thanks, {{customer={customer}}}"))


def order_change(w):
    product, number, count = w.product(), w.code(w.one("99-999", "W9999", "9999999")), w.rng.randint(2, 30)
    if w.language == "es":
        return w.join(f"Quiero {{action={w.one('cancel~anular', 'return~devolver')}}} el pedido {{order_number={number}}}.", w.maybe("Motivo: {reason=llegó tarde}.", "Motivo: {reason=me equivoqué de modelo}."))
    reason = w.one("it no longer fits our plans", "the colour is wrong", "I ordered by mistake", "we found one in the cellar", "the delivery takes too long")
    action = w.one(f"Please {{action=cancel~cancel}} the {{article={product}}}", f"I want to {{action=return~send back}} the {{article={product}}}", f"Make it {{action=change_quantity;new_quantity={count}~{count}}} of the {{article={product}}}",
                   "Please {action=change_address~deliver to our new office instead}", f"Could you {{action=other~add a greeting card}} to the {{article={product}}}", f"Please {{action=change_quantity~change the quantity}} to {{new_quantity={count}}}")
    return w.join(w.maybe("Hello again.", "Good afternoon,", chance=0.4), action + w.maybe(f", because {{reason={reason}}}", chance=0.5) + ".", w.maybe(f"It is order {{order_number={number}}}.", f"Order number: {{order_number={number}}}.", chance=0.7),
                  w.maybe("Sorry for the trouble.", "Thank you.", chance=0.5))


def meeting(w):
    people = [w.name() for _ in range(w.rng.randint(1, 4))]
    away = [w.name() for _ in range(w.rng.randint(0, 2))]
    title, day = w.one("Quality circle", "Sales review", "Kitchen committee", "Release planning", "Safety board", "Research lunch"), w.day(0, 250)
    decided = w.some(["the old warehouse is sold", "prices stay as they are", "the newsletter goes out monthly", "a second shift starts in autumn", "the trial is extended by four weeks", "visitors must register"], 0, 3)
    later = day + datetime.timedelta(days=w.one(7, 14, 28))
    if w.language == "de":
        return w.join(f"Protokoll vom {w.date('date', day)}.", f"Teilgenommen haben {w.listing(marks('participants', people), 'und')}.", w.maybe("Beschlossen wurde: {decisions.0=das Archiv zieht um}.", chance=0.7), w.maybe(f"Nächster Termin: {w.date('next_meeting', later)}."))
    return w.join(w.maybe(f"{{title={title}}},", chance=0.8), w.one(f"{w.date('date', day)}.", f"held on {w.date('date', day)}.", "notes."), w.maybe(f"Start: {w.clock('start')}.", f"We began at {w.clock('start')}.", chance=0.5),
                  w.one(f"Present: {w.listing(marks('participants', people))}.", f"There were {w.listing(marks('participants', people))}." if len(people) > 1 else f"Only {{participants.0={people[0]}}} came."),
                  f"Absent: {w.listing(marks('absent', away))}." if away else "", f"Decisions: {'; '.join(marks('decisions', decided))}." if decided else w.maybe("No decisions were taken.", "We only exchanged news."),
                  w.maybe(f"Next meeting {w.date('next_meeting', later)}.", f"We meet again on {w.date('next_meeting', later)}.", chance=0.5))


def action_items(w):
    tasks = w.some(["update the price list", "ask two printers for quotes", "clean up the shared folder", "repair the coffee machine", "write the invitation", "test the backup", "measure the windows", "call the insurance", "send the samples"], 1, 4)
    if w.language == "es":
        tasks = w.some(["llamar al seguro", "revisar el presupuesto", "enviar las muestras", "limpiar el almacén", "pedir tres ofertas"], 1, 3)
    parts = []
    for index, task in enumerate(tasks):
        owner, due = w.name(), w.date(f"actions.{index}.due")
        at = f"actions.{index}"
        if w.language == "es":
            parts.append(w.one(f"{{{at}.owner={owner}}}: {{{at}.task={task}}}, antes del {due}.", f"{{{at}.owner={owner}}}: {{{at}.task={task}}}, sin fecha."))
            continue
        parts.append(w.one(f"{{{at}.owner={owner}}} is to {{{at}.task={task}}} by {due}.", f"{{{at}.owner={owner}}} will {{{at}.task={task}}}.", f"Somebody has to {{{at}.task={task}}} before {due}.", f"Still open and without a name: {{{at}.task={task}}}.",
                           f"We asked {{{at}.owner={owner}}} to {{{at}.task={task}}}; deadline {due}."))
    return w.join(w.maybe("Follow-up of today's call.", "Actions:", "What we agreed:", chance=0.5), *parts)


def log_line(w):
    moment = datetime.datetime.combine(w.day(), datetime.time(w.rng.randint(0, 23), w.rng.randint(0, 59), w.rng.randint(0, 59)))
    stamp = w.one(moment.strftime("%Y-%m-%d %H:%M:%S"), moment.strftime("%Y-%m-%dT%H:%M:%S"), moment.strftime("%d/%b/%Y:%H:%M:%S"), moment.strftime("%Y/%m/%d %H:%M:%S"))
    level = w.one("debug~DEBUG", "info~INFO", "warning~WARN", "warning~warning", "error~ERROR", "error~err", "fatal~FATAL", "fatal~PANIC")
    message = w.one("connection reset by peer", "cache rebuilt", "retry 3 of 5", "certificate expires in 9 days", "disk quota exceeded", "user session closed", "config reloaded", "request rejected: body too large", "slow query")
    service, host = w.one("auth-api", "mailer", "indexer", "scheduler", "ingest", "thumbs"), w.one("app", "node", "edge", "db") + w.code("-99")
    return w.join(w.maybe(f"{{timestamp={moment.isoformat()}~{stamp}}}", chance=0.8), w.maybe(f"{{host={host}}}"), w.maybe(f"[{{level={level}}}]", f"{{level={level}}}", chance=0.85), w.maybe(f"{{service={service}}}:", chance=0.75), f"{{message={message}}}",
                  w.maybe(f"status={{status={w.one(200, 204, 301, 404, 429, 500, 503)}}}", chance=0.45), w.maybe(f"in {{duration_ms={w.rng.randint(2, 9000)}}} ms", f"dur={{duration_ms={cents(w.rng, 1, 90)}}}ms", chance=0.45))


def incident(w):
    begin = datetime.datetime.combine(w.day(), datetime.time(w.rng.randint(0, 20), w.rng.choice([5, 12, 20, 34, 47])))
    end = begin + datetime.timedelta(minutes=w.rng.randint(8, 170))
    service, users, minutes = w.one("payment page", "search", "badge readers", "public API", "ticket hotline", "file server"), w.rng.randint(20, 9000), w.rng.randint(5, 95)
    cause = w.one("a full disk", "a wrong firewall rule", "a power cut in the east wing", "a faulty deployment", "an exhausted connection pool")

    def at(path, moment):
        return f"{{{path}={moment.isoformat()}~{w.spell(moment.date())}, {moment:%H:%M}}}"
    if w.language == "fr":
        return w.join(f"Incident sur {{service={service}}} depuis le {at('started', begin)}.", w.maybe(f"{{users_affected={users}}} personnes touchées."), w.one("{resolved=false~L'incident est en cours.}", "{resolved=true~Le service est rétabli.}", ""))
    return w.join(w.maybe(f"Severity {{severity={w.rng.randint(1, 4)}}}.", f"P{{severity={w.rng.randint(1, 4)}}}:", chance=0.45), w.one(f"The {{service={service}}} failed", f"Outage of the {{service={service}}}", f"Trouble with the {{service={service}}}"),
                  w.one(f"on {at('started', begin)}, back on {at('ended', end)}.", f"from {at('started', begin)}.", f"for {{duration_minutes={minutes}}} minutes.", "this week."), w.maybe(f"It hit {{users_affected={users}~{users:,}}} people.", f"Users affected: {{users_affected={users}}}.", chance=0.5),
                  w.maybe(f"Reason: {{cause={cause}}}.", f"It was caused by {{cause={cause}}}.", "Reason not yet known.", chance=0.7), w.maybe("{resolved=true~Everything is back to normal.}", "{resolved=true~Solved.}", "{resolved=false~We are still investigating.}", chance=0.7))


def job_ad(w):
    title = w.one("Backend Developer", "Warehouse Clerk", "Pastry Chef", "Site Engineer", "Tax Adviser", "Physiotherapist", "Bus Driver", "Lab Technician", "Copy Editor")
    skills = w.some(["a driving licence", "team spirit", "good spoken Spanish", "first aid", "technical drawing", "bookkeeping", "care with details", "shift work", "version control"], 0, 3)
    low, currency = w.rng.randint(24, 70) * 1000, w.currency()
    high = low + w.rng.randint(2, 12) * 1000
    if w.language == "de":
        return w.join(f"{{company={w.company()}}} sucht: {{title={title}}}.", w.maybe(f"Einsatzort ist {{city={w.city()}}}."), w.maybe("{remote=full~Arbeiten von überall möglich.}", "{remote=no~Kein Homeoffice.}", "{remote=partly~Zwei Tage Homeoffice.}"), f"Wir erwarten {w.listing(marks('skills', skills), 'und')}." if skills else "")
    return w.join(w.one(f"{{company={w.company()}}} hires a {{title={title}}}", f"We are looking for a {{title={title}}}", f"Job: {{title={title}}}") + w.one(f" in {{city={w.city()}}}.", "."), f"You need {w.listing(marks('skills', skills))}." if skills else "",
                  w.maybe("{remote=full~Work from anywhere.}", "{remote=partly~Hybrid, three days in the office.}", "{remote=no~The job cannot be done from home.}", chance=0.5),
                  w.maybe(f"Pay: {{salary.min={low};salary.max={high};salary.currency={currency};salary.period=year~{currency} {low:,} to {high:,} per year}}.", f"{{salary.min={low};salary.currency={currency};salary.period=year~At least {low // 1000}k {currency} a year}}.",
                          f"{{salary.max={high // 12 // 10 * 10};salary.currency={currency};salary.period=month~Up to {high // 12 // 10 * 10} {currency} monthly}}.", "Good pay.", chance=0.65))


def job_terms(w):
    start, last = w.day(180, 330), w.day(0, 170)
    hours, mail, years = w.one(15, 20, 30, 32.5, 38.5, 40), f"{w.one('jobs', 'people', 'apply')}@{w.company().split()[0].lower()}.example", w.rng.randint(2, 8)
    if w.language == "de":
        return w.join(w.one("Die Stelle ist {contract=permanent~unbefristet}.", "Die Stelle ist {contract=fixed_term~auf zwei Jahre befristet}."), w.maybe(f"Wochenarbeitszeit: {w.amount('hours_per_week', hours)} Stunden."), w.maybe(f"Beginn: {w.date('start', start)}."), w.maybe(f"Bewerbung an {{contact_email={mail}}}."))
    return w.join(w.maybe("The contract is {contract=permanent~open-ended}.", "{contract=fixed_term~Limited to twelve months.}", "We offer an {contract=internship~internship}.", "You work as a {contract=freelance~freelancer}.", chance=0.7), w.maybe(f"{{hours_per_week={hours}}} hours per week.", f"Weekly hours: {{hours_per_week={hours}}}."),
                  w.maybe(f"Start: {w.date('start', start)}.", "Start as soon as possible.", chance=0.65), w.maybe(f"Minimum experience: {{experience_years={years}}} years.", "Beginners welcome.", chance=0.5), w.one(f"Apply by {w.date('apply_by', last)}", "Apply") + w.one(f" to {{contact_email={mail}}}.", " in person."))


def review(w):
    product, stars = w.product(), w.rng.randint(1, 5)
    good, bad = ["well made", "looks great", "very quiet", "easy to use", "good value", "arrived early"], ["hard to clean", "feels cheap", "too loud", "unclear manual", "far too small", "smells odd"]
    mood = "positive" if stars > 3 else "negative" if stars < 3 else "mixed"
    pros = w.some(good, 1, 3) if mood != "negative" else w.some(good, 0, 1)
    cons = w.some(bad, 1, 3) if mood != "positive" else w.some(bad, 0, 1)
    feeling = {"positive": w.one("Very happy.", "Great buy!", "Just what I wanted."), "mixed": w.one("Mixed feelings.", "It is all right.", "Could be better, could be worse."), "negative": w.one("A disappointment.", "Never again.", "Not what I paid for.")}[mood]
    feeling = f"{{sentiment={mood}~{feeling}}}"
    advice = {"positive": "{would_recommend=true~I can recommend it.}", "mixed": "", "negative": "{would_recommend=false~I would not recommend it.}"}[mood]
    if w.language == "fr":
        feeling = {"positive": "{sentiment=positive~Très satisfait.}", "mixed": "{sentiment=mixed~Avis partagé.}", "negative": "{sentiment=negative~Très déçu.}"}[mood]
        return w.join(f"{{product={product}}} :", feeling, f"Note : {{stars={stars}}}/5.", "Points forts : " + ", ".join(marks("pros", pros)) + "." if pros else "", "Points faibles : " + ", ".join(marks("cons", cons)) + "." if cons else "")
    return w.join(w.one(f"{{product={product}}}.", f"About the {{product={product}}}:", f"I tried the {{product={product}}}.", "Bought as a gift."), feeling, w.maybe(f"{{stars={stars}}} of 5 stars.", f"Rating: {{stars={stars}}}."), f"Plus: {w.listing(marks('pros', pros))}." if pros else "",
                  f"{w.one('Minus', 'But', 'Downside')}: {w.listing(marks('cons', cons))}." if cons else "", advice if w.rng.random() < 0.5 else "")


def purchase_facts(w):
    product, price, currency, months = w.product(), cents(w.rng, 8, 400), w.currency(), w.rng.randint(2, 30)
    if w.language == "es":
        return w.join(f"Compré {{product={product}}}" + w.maybe(f" en {{shop={w.company()}}}") + w.maybe(f" el {w.date('bought')}") + ".", w.maybe(f"Me costó {w.money('price', 'currency', price, currency)}."), w.maybe("{broken=true~Ya no funciona.}", "{broken=false~Funciona perfectamente.}"))
    return w.join(w.one("I own the", "We bought the", "Got myself the") + f" {{product={product}}}" + w.maybe(f" from {{shop={w.company()}}}", f" at {{shop={w.company()}}}", chance=0.5) + w.maybe(f" ({w.date('bought')})", f" on {w.date('bought')}", chance=0.5) + ".",
                  w.maybe(f"Price: {w.money('price', 'currency', price, currency)}.", f"I paid {w.money('price', 'currency', price, currency)} for it.", "It was on sale."), w.maybe(f"In use for {{months_used={months}}} months.", chance=0.5),
                  w.maybe("{broken=true~It broke.}", "{broken=true~Now it is dead.}", "{broken=false~No failure so far.}", "{broken=false~Works like on the first day.}", chance=0.6))


def flight(w):
    here, there, day = w.city(), w.city(), w.day(20, 300)
    legs = [(here, there, day)] + ([(there, here, day + datetime.timedelta(days=w.rng.randint(2, 16)))] if w.rng.random() < 0.5 else [])
    shown = []
    for index, (start, end, when) in enumerate(legs):
        at = f"legs.{index}"
        arrow = w.one(" to ", " - ", " → ") if w.language == "en" else " - "
        shown.append(w.maybe(f"{{{at}.flight={w.code('AA 999')}}} ") + f"{{{at}.from={start}}}{arrow}{{{at}.to={end}}}" + w.maybe(f", {w.date(at + '.date', when)}", chance=0.8) + w.maybe(f", {w.clock(at + '.departs')}", chance=0.5))
    people = [w.name() for _ in range(w.rng.randint(0, 3))]
    code, price, currency = w.code("AA9A9A"), cents(w.rng, 60, 1400), w.currency()
    if w.language == "de":
        return w.join(f"Ihre Buchung {{booking_code={code}}}:", "; ".join(shown) + ".", f"Reisende: {w.listing(marks('passengers', people), 'und')}." if people else "", w.maybe(f"Preis {w.money('price', 'currency', price, currency)}."))
    return w.join(w.maybe(f"Booking code {{booking_code={code}}}.", f"Reference: {{booking_code={code}}}.", "Your trip is booked.", chance=0.8), w.one("Flights: ", "Itinerary: ", "") + "; ".join(shown) + ".", f"{w.one('Passengers', 'Travellers', 'Names')}: {w.listing(marks('passengers', people))}." if people else "",
                  w.maybe(f"Total price {w.money('price', 'currency', price, currency)}.", f"Charged: {w.money('price', 'currency', price, currency)}."))


def hotel(w):
    nights, arrive = w.rng.randint(2, 9), w.day(20, 300)
    leave, name = arrive + datetime.timedelta(days=nights), w.one("Hotel", "Villa", "Inn", "Residence") + " " + w.one("Aurora", "Bellevue", "Corona", "Delfin", "Miramar", "Sternberg")
    price, currency, guests = w.rng.randint(45, 290), w.currency(), w.rng.randint(2, 6)
    if w.language == "es":
        return w.join(f"Reserva en {{hotel={name}}}" + w.maybe(f", {{city={w.city()}}}") + f": del {w.date('check_in', arrive)} al {w.date('check_out', leave)}.", w.maybe("{breakfast=true~Desayuno incluido.}", "{breakfast=false~Sin desayuno.}"), w.maybe(f"{{guests={guests}}} personas."))
    return w.join(w.one(f"{{hotel={name}}}", f"Your stay at {{hotel={name}}}", "Room request") + w.maybe(f", {{city={w.city()}}}") + w.one(f": {w.date('check_in', arrive)} to {w.date('check_out', leave)}.", f", arriving {w.date('check_in', arrive)}.", f", {{nights={nights}}} nights from {w.date('check_in', arrive)}.", "."),
                  w.maybe(f"{{guests={guests}}} guests.", f"For {{guests={guests}}} people.", chance=0.5), w.maybe("{breakfast=true~With breakfast.}", "{breakfast=true~Breakfast is part of the price.}", "{breakfast=false~Breakfast costs extra.}", chance=0.5), w.maybe(f"Rate: {w.money('price_per_night', 'currency', price, currency)} a night.", chance=0.6))


def contract(w):
    one, two = w.one(w.company(), w.name()), w.name()
    kind, first, second = w.one(("lease~rental agreement", "Lessor", "Lessee"), ("service~service agreement", "Provider", "Customer"), ("sale~contract of sale", "Seller", "Buyer"), ("loan~loan agreement", "Lender", "Borrower"),
                                ("employment~contract of employment", "Employer", "Employee"), ("nda~confidentiality agreement", "Disclosing Party", "Receiving Party"))
    start = w.day(0, 300)
    end = start.replace(year=start.year + w.rng.randint(1, 4), day=min(start.day, 28))
    if w.language == "fr":
        kind = w.one("lease~bail", "service~contrat de prestation", "sale~contrat de vente", "loan~contrat de prêt")
        return w.join(f"Le présent {{kind={kind}}} est conclu entre {{parties.0.name={one}}} et {{parties.1.name={two}}}.", w.maybe(f"Il prend effet le {w.date('starts', start)}."), w.maybe("Il est soumis au {governing_law=droit suisse}."))
    roles = w.rng.random() < 0.6
    parties = f"{{parties.0.name={one}}} (\"{{parties.0.role={first}}}\") and {{parties.1.name={two}}} (\"{{parties.1.role={second}}}\")" if roles else f"{{parties.0.name={one}}} and {{parties.1.name={two}}}"
    return w.join(w.one(f"This {{kind={kind}}} is between {parties}.", f"By this {{kind={kind}}}, {parties} agree as follows."), w.maybe(f"It runs from {w.date('starts', start)} to {w.date('ends', end)}.", f"It takes effect on {w.date('starts', start)}.", f"It ends on {w.date('ends', end)}.", chance=0.75),
                  w.maybe(f"Signed {w.date('signed', start - datetime.timedelta(days=w.rng.randint(3, 30)))}.", chance=0.5), w.maybe(f"Applicable law: {{governing_law={w.one('England and Wales', 'Austria', 'the State of Ohio', 'Japan')}}}.", chance=0.5))


def contract_terms(w):
    fee, currency, notice = w.rng.randint(20, 1900), w.currency(), w.one(14, 30, 45, 60, 90)
    if w.language == "de":
        return w.join(w.maybe(f"Die Kündigungsfrist beträgt {{notice_days={notice}}} Tage."), f"Monatlich fällig sind {w.money('monthly_fee', 'currency', fee, currency)}.", w.maybe("{auto_renewal=true~Der Vertrag verlängert sich automatisch.}", "{auto_renewal=false~Der Vertrag endet ohne Kündigung.}"), w.maybe("{confidential=true~Über den Inhalt ist Stillschweigen zu bewahren.}", chance=0.4))
    return w.join(w.maybe(f"Notice period: {{notice_days={notice}}} days.", f"It may be ended with {{notice_days={notice}}} days' notice."), w.maybe(f"Monthly charge: {w.money('monthly_fee', 'currency', fee, currency)}.", chance=0.7) if w.rng.random() < 0.7 else f"A deposit of {w.money('deposit', 'currency', fee * 3, currency)} is due at signing.",
                  w.maybe("{auto_renewal=true~It renews automatically.}", "{auto_renewal=false~There is no automatic renewal.}", "{auto_renewal=true~Without notice it goes on for another year.}", chance=0.6), w.maybe(f"Arrears carry {{late_fee_percent={w.one(1, 2.5, 4, 5, 8)}}} % interest.", chance=0.5),
                  w.one("{confidential=true~The terms are confidential.}", "{confidential=false~The terms may be made public.}", "Changes must be made in writing.", "The annex is part of the agreement."))


def sensor(w):
    moment = datetime.datetime.combine(w.day(), datetime.time(w.rng.randint(0, 23), w.rng.randint(0, 59), w.rng.choice([0, 0, 15, 30, 42])))
    kinds = w.some([("temperature", "temp", "°C", -20, 95), ("humidity", "humidity", "%", 20, 95), ("pressure", "pressure", "kPa", 80, 400), ("co2", "CO2", "ppm", 400, 2000), ("voltage", "voltage", "V", 3, 240), ("level", "fill level", "%", 1, 99), ("speed", "fan speed", "rpm", 200, 3000)], 1, 3)
    shown = []
    for index, (kind, word, unit, low, high) in enumerate(kinds):
        value = w.rng.randint(low, high) if w.rng.random() < 0.4 else w.rng.randint(low * 10 + 1, high * 10) / 10
        value = int(value) if value == int(value) else value
        at = f"readings.{index}"
        figure = str(value).replace(".", ",") if w.language == "de" else str(value)
        shown.append(f"{{{at}.quantity={kind}~{word}}}{w.one(' ', ': ', ' = ')}{{{at}.value={value}~{figure}}}" + w.maybe(f" {{{at}.unit={unit}}}", chance=0.85))
    if w.language == "de":
        return w.join(f"Sensor {{sensor={w.code('AA-99')}}},", w.maybe(f"{{location={w.one('Halle 3', 'Keller', 'Dach')}}},"), f"{{measured_at={moment.isoformat()}~{moment:%d.%m.%Y %H:%M:%S}}}:", ", ".join(shown) + ".", w.maybe("{status=alarm~Alarm ausgelöst.}", "{status=ok~Alles in Ordnung.}"))
    return w.join(w.maybe(f"{{sensor={w.code(w.one('AA-99', 'A9999', 'node9.A9'))}}}", chance=0.85), w.maybe(f"@ {{location={w.one('roof', 'pump house', 'line 2', 'server room', 'silo B')}}}"), w.maybe(f"{{measured_at={moment.isoformat()}~{w.one(moment.strftime('%Y-%m-%d %H:%M:%S'), moment.strftime('%d %b %Y %H:%M:%S'))}}}", chance=0.7),
                  w.one("| ", "", "reports ") + w.one(", ", "; ").join(shown), w.maybe("{status=ok~ok}", "{status=warning~WARN}", "{status=alarm~ALARM}", "{status=warning~limit nearly reached}", chance=0.6))


def maintenance(w):
    machine, hours, day = w.one("milling machine", "dough mixer", "conveyor C2", "heat pump", "tractor 3", "packing robot", "dishwasher"), w.rng.randint(200, 30000), w.day(0, 200)
    if w.language == "fr":
        machine = w.one("fraiseuse", "chambre froide", "presse hydraulique", "chaudière du bâtiment B")
        parts = w.some(["filtre à huile", "joint", "fusible", "pompe", "flexible"], 0, 3)
        return w.join(f"Entretien : {{machine={machine}}}, {w.date('serviced', day)}.", f"Pièces remplacées : {w.listing(marks('parts_replaced', parts), 'et')}." if parts else "", w.maybe("{running=true~La machine est en service.}", "{running=false~La machine est à l'arrêt.}"))
    parts = w.some(["oil filter", "V-belt", "seal ring", "spindle", "fuse", "brake pads", "hose"], 0, 3)
    return w.join(w.one(f"Service of the {{machine={machine}}}", f"The {{machine={machine}}} was overhauled", "Inspection report") + w.maybe(f" by {{technician={w.name()}}}", chance=0.5) + w.maybe(f", {w.date('serviced', day)}") + ".", w.maybe(f"Operating hours: {{hours_run={hours}~{w.one(str(hours), f'{hours:,}')}}}.", chance=0.5),
                  f"{w.one('New', 'Parts changed', 'Replaced')}: {w.listing(marks('parts_replaced', parts))}." if parts else w.maybe("No parts were needed.", chance=0.5), w.maybe(f"Next service {w.date('next_service', day + datetime.timedelta(days=w.one(90, 180)))}.", chance=0.5),
                  w.maybe("{running=true~It is running again.}", "{running=false~It stays switched off.}", "{running=true~Handed over in working order.}", chance=0.6))


MAKERS = {f.__name__: f for f in (support_ticket, support_contact, invoice, invoice_lines, order, order_change, meeting, action_items, log_line, incident,
                                  job_ad, job_terms, review, purchase_facts, flight, hotel, contract, contract_terms, sensor, maintenance)}
FOREIGN = {"support_ticket": "de", "support_contact": "fr", "invoice": "de", "invoice_lines": "de", "order": "fr", "order_change": "es", "meeting": "de", "action_items": "es",
           "incident": "fr", "job_ad": "de", "job_terms": "de", "review": "fr", "purchase_facts": "es", "flight": "de", "hotel": "es", "contract": "fr",
           "contract_terms": "de", "sensor": "de", "maintenance": "fr"}


def document(schema, rng, language="en"):
    """A document with marks for the schema of this name."""
    return MAKERS[schema](Words(rng, language)).strip()
