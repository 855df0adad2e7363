library(testthat)
library(tributarymeta)

test_check("tributarymeta")
