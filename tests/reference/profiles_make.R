# Reference values of tests/coordinator_side/pooling/test_profiles.py: Rscript tests/reference/profiles_make.R > tests/reference/profiles.json
# Partial likelihoods of survival's lung, one for each institution, in the forms of EvidenceSynthesis; pooled by
# coxph(strata(inst)), which is what adding them is. The parametric forms as its documentation defines them, pooled by
# R's own dnorm, pnorm, optimize and uniroot. And conditional odds ratios by dhyper-like sums.
suppressMessages({library(survival); library(jsonlite)})
d <- lung[lung$inst %in% c(1, 3, 11, 13, 16, 22), ]
d$x <- as.integer(d$sex == 2)
at <- function(data, b, formula = Surv(time, status) ~ x)
  coxph(formula, data, init = b, control = coxph.control(iter.max = 0), ties = "efron")$loglik[2]
limits <- function(f, top, value, low, high) {
  floor <- value - qchisq(0.95, 1) / 2
  c(uniroot(function(b) f(b) - floor, c(low, top), tol = 1e-12)$root, uniroot(function(b) f(b) - floor, c(top, high), tol = 1e-12)$root)
}
grid <- seq(-4.6, 3.4, length.out = 161)
sites <- list()
for (i in unique(d$inst)) {
  one <- d[d$inst == i, ]
  slope <- sapply(grid, function(b) sum(residuals(coxph(Surv(time, status) ~ x, one, init = b, control = coxph.control(iter.max = 0), ties = "efron"), "score")))
  sites[[as.character(i)]] <- list(value = sapply(grid, function(b) at(one, b)), derivative = slope)
}
all <- function(b) at(d, b, Surv(time, status) ~ x + strata(inst))
fit <- coxph(Surv(time, status) ~ x + strata(inst), d, ties = "efron", control = coxph.control(eps = 1e-12))
cox <- list(grid = grid, sites = sites, beta = unname(coef(fit)), interval = limits(all, coef(fit), all(coef(fit)), -4, 3))
skew <- data.frame(mu = c(0.2, -0.1, 0.5), sigma = c(0.5, 0.3, 0.8), alpha = c(-2, 1.5, 6))
custom <- data.frame(mu = c(0.2, -0.1, 0.5), sigma = c(0.5, 0.3, 0.8), gamma = c(-0.4, 0.3, 0.1))
parametric <- function(f) {
  best <- optimize(f, c(-3, 3), maximum = TRUE, tol = 1e-14)
  list(beta = best$maximum, interval = limits(f, best$maximum, best$objective, -8, 8))
}
snorm <- function(b) sum(log(2) + dnorm(b, skew$mu, skew$sigma, log = TRUE) + pnorm(skew$alpha * (b - skew$mu), 0, skew$sigma, log.p = TRUE))
own <- function(b) sum(exp(custom$gamma * (b - custom$mu)) * (-(b - custom$mu)^2 / (2 * custom$sigma^2)))
counts <- rbind(c(0, 100, 4, 96), c(2, 98, 5, 95), c(3, 40, 9, 33))
conditional <- function(b) sum(apply(counts, 1, function(r) {
  n1 <- r[1] + r[2]; n2 <- r[3] + r[4]; m <- r[1] + r[3]; x <- max(0, m - n2):min(n1, m)
  w <- lchoose(n1, x) + lchoose(n2, m - x) + b * x
  lchoose(n1, r[1]) + lchoose(n2, r[3]) + b * r[1] - (max(w) + log(sum(exp(w - max(w)))))
}))
out <- list(versions = list(R = as.character(getRversion()), survival = as.character(packageVersion("survival"))),
  cox = cox, skew = c(list(table = skew), parametric(snorm)), custom = c(list(table = custom), parametric(own)),
  counts = c(list(table = counts), parametric(conditional)))
cat(toJSON(out, digits = 15, auto_unbox = TRUE, dataframe = "columns"))
