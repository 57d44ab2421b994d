# The regression inputs, in order; each has sql/<name>.sql and expected/<name>.out.
DSV3_REGRESS =
