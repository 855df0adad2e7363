# Reference values of tests/both_sides/estimands/test_nominal.py: Rscript tests/reference/nominal_make.R > tests/reference/nominal.json
# Reads tests/reference/generalised.csv (python -m tests.both_sides.estimands.test_generalised writes it).
suppressMessages({library(jsonlite); library(nnet); library(quantreg)})
d <- read.csv("tests/reference/generalised.csv")
d$smoking <- factor(d$smoking, levels = c("never", "former", "current"))
# One level's coefficients after the other's, fitted to standardised columns: nnet stops where a step gains little.
z <- transform(d, age = as.vector(scale(age)), cost = as.vector(scale(cost)))
at <- c(0, mean(d$age), 0, mean(d$cost)); spread <- c(1, sd(d$age), 1, sd(d$cost))
back <- diag(1 / spread); back[1, ] <- c(1, -(at / spread)[-1])
nominal <- function(weights) {
  z$weights <- weights
  fit <- multinom(smoking ~ age + arm + cost, z, weights = weights, trace = FALSE, maxit = 1e5, abstol = 0, reltol = 1e-16)
  beta <- as.vector(t(coef(fit)))
  names <- as.vector(sapply(c("former", "current"), function(level) paste(colnames(coef(fit)), level, sep = " | ")))
  both <- kronecker(diag(2), back)
  list(beta = setNames(as.list(drop(both %*% beta)), names),
       se = list(model = setNames(as.list(sqrt(diag(both %*% vcov(fit) %*% t(both)))), names)))
}
quantiles <- lapply(c("0.25" = .25, "0.55" = .55, "0.9" = .9), function(tau) {
  table <- summary(rq(cost ~ age + arm + smoking, tau, d, method = "br"), se = "ker")$coefficients
  list(beta = as.list(table[, 1]), se = list(model = as.list(table[, 2])))
})
answers <- list(
  multinomial = list(plain = nominal(rep(1, nrow(z))), weighted = nominal(z$w)),
  quantile = quantiles,
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."), nnet = as.character(packageVersion("nnet")),
                  quantreg = as.character(packageVersion("quantreg")))
)
cat(toJSON(answers, digits = 14, auto_unbox = TRUE, pretty = TRUE), "\n")
