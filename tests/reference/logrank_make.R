# Reference values of tests/both_sides/estimands/test_survival_models.py:
#   Rscript tests/reference/logrank_make.R > tests/reference/logrank.json
# Reads tests/reference/survival.csv. Each level of stage is compared with the first: survdiff of the rows of the two.
suppressMessages({library(survival); library(jsonlite)})
d <- read.csv("tests/reference/survival.csv")
peto <- function(f) list(yi = (sum(as.matrix(f$obs)[2, ]) - sum(as.matrix(f$exp)[2, ])) / f$var[2, 2], vi = 1 / f$var[2, 2])
pair <- function(k) list(
  plain = peto(survdiff(Surv(time, event) ~ stage, d, subset = stage %in% c(1, k))),
  strata = peto(survdiff(Surv(time, event) ~ stage + strata(arm), d, subset = stage %in% c(1, k))))
all <- survdiff(Surv(time, event) ~ stage, d)
two <- peto(survdiff(Surv(time, event) ~ arm, d))
cat(toJSON(list(
  versions = list(R = as.character(getRversion()), survival = as.character(packageVersion("survival"))),
  chisq = all$chisq, observed = all$obs, expected = all$exp, pairs = list(`2` = pair(2), `3` = pair(3)), arm = two
), digits = 15, auto_unbox = TRUE))
