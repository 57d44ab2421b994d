# The tests of the SQL side, named one by one. Regression inputs are sql/<name>.sql with expected/<name>.out; isolation specs
# test/specs/<name>.spec with test/expected/<name>.out.
DSV3_REGRESS = api nulls options errors stream chat planner privileges activity extract classify rowtype cache sets limits prompts fold estimate
DSV3_ISOLATION = cancel sessions drop batching
DSV3_PGTAP = test/pgtap/contract.sql test/pgtap/access.sql
DSV3_TAP = $(sort $(wildcard test/t/*.pl))
