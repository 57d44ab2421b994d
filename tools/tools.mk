# Model makers, oracle, lint and format.
