# Reference values of tests/both_sides/estimands/test_survival_models.py and tests/both_sides/estimands/test_curves.py:
#   Rscript tests/reference/survival_make.R > tests/reference/survival.json
# Reads tests/reference/survival.csv (python -m tests.both_sides.estimands.test_survival_models writes it) and generalised.csv.
suppressMessages({library(survival); library(cmprsk); library(splines); library(sandwich); library(jsonlite)})
d <- read.csv("tests/reference/survival.csv"); g <- read.csv("tests/reference/generalised.csv")
tight <- coxph.control(eps = 1e-12, iter.max = 100)
tidy <- function(fit) list(beta = as.list(coef(fit)), se = as.list(sqrt(diag(vcov(fit)))))
steps <- survSplit(Surv(entry, time, event) ~ ., d, cut = c(2, 5), episode = "part")
for (p in 1:3) steps[[paste0("arm", p)]] <- steps$arm * (steps$part == p)
cox <- list(
  truncated = coxph(Surv(entry, time, event) ~ age + arm, d, control = tight),
  truncated_breslow = coxph(Surv(entry, time, event) ~ age + arm, d, ties = "breslow", control = tight),
  truncated_strata = coxph(Surv(entry, time, event) ~ age + arm + strata(stage), d, control = tight),
  truncated_weights = coxph(Surv(entry, time, event) ~ age + arm, d, weights = w, robust = FALSE, control = tight),
  robust = coxph(Surv(time, event) ~ age + arm, d, robust = TRUE, control = tight),
  robust_truncated = coxph(Surv(entry, time, event) ~ age + arm, d, cluster = id, control = tight),
  cluster = coxph(Surv(time, event) ~ age + arm + strata(stage), d, cluster = hospital, control = tight),
  steps = coxph(Surv(entry, time, event) ~ age + arm1 + arm2 + arm3, steps, control = tight),
  steps_cluster = coxph(Surv(entry, time, event) ~ age + arm1 + arm2 + arm3, steps, cluster = hospital, control = tight))
zph <- function(how) { z <- cox.zph(coxph(Surv(time, event) ~ age + arm, d, control = tight), transform = how)$table; list(chisq = as.list(z[, "chisq"]), p = as.list(z[, "p"])) }
surv <- survfit(Surv(time, event) ~ arm, d); at <- summary(surv, times = 4, extend = TRUE)
d$state <- factor(ifelse(d$event == 1, 1, ifelse(d$other == 1, 2, 0)), 0:2, c("censored", "event", "other"))
aj <- summary(survfit(Surv(time, state) ~ arm, d, id = id), times = 4)
fg <- finegray(Surv(time, state) ~ age + arm + id, d, etype = "event")
fgfit <- coxph(Surv(fgstart, fgstop, fgstatus) ~ age + arm, fg, weights = fgwt, cluster = id, control = tight)
breslow <- coxph(Surv(fgstart, fgstop, fgstatus) ~ age + arm, fg, weights = fgwt, cluster = id, ties = "breslow", control = tight)
apart <- d$time + d$id * 1e-6  # crr counts a tied event as at risk of censoring, finegray does not: without ties they agree
cr <- crr(apart, as.integer(d$state) - 1, d[, c("age", "arm")], gtol = 1e-12)
aft <- function(dist) { f <- survreg(Surv(time, event) ~ age + arm, d, dist = dist, control = survreg.control(rel.tolerance = 1e-12, maxiter = 100)); list(beta = as.list(coef(f)), scale = f$scale, se = as.list(sqrt(diag(vcov(f)))), weighted = tidy(survreg(Surv(time, event) ~ age + arm, d, dist = dist, weights = w, control = survreg.control(rel.tolerance = 1e-12, maxiter = 100)))) }
three <- cox.zph(coxph(Surv(entry, time, event) ~ age + factor(stage) + strata(arm), d, control = tight), transform = "log", terms = FALSE)$table
landmark <- summary(survfit(Surv(time, event) ~ arm, d[d$time > 2, ]), times = 4, extend = TRUE)
wb <- survreg(Surv(time, event) ~ age + arm, d, dist = "weibull", control = survreg.control(rel.tolerance = 1e-12, maxiter = 100))
ps <- pseudo(survfit(Surv(time, event) ~ 1, d), times = 6, type = "rmst")
d$ps <- as.numeric(ps); rm <- lm(ps ~ age + arm, d)
curves <- list(
  ns_df = glm(died ~ ns(age, df = 3) + arm, binomial, g, control = list(epsilon = 1e-14)),
  ns_knots = glm(died ~ ns(age, knots = c(55, 65), Boundary.knots = c(45, 75)) + arm, binomial, g, control = list(epsilon = 1e-14)),
  bs_df = lm(cost ~ bs(age, df = 5) + arm, g),
  bs_knots = lm(cost ~ bs(age, knots = 60, degree = 2, Boundary.knots = c(20, 100)), g),
  poly = glm(k ~ poly(age, 2, raw = TRUE) + offset(log(years)), poisson, g, control = list(epsilon = 1e-14)))
gl <- glm(died ~ age + arm, binomial, g, control = list(epsilon = 1e-14)); gp <- glm(k ~ age + arm + offset(log(years)), poisson, g, control = list(epsilon = 1e-14)); go <- lm(cost ~ age + arm, g)
cl <- function(fit) as.list(sqrt(diag(vcovCL(fit, cluster = g$k, type = "HC0"))))
cat(toJSON(list(
  versions = list(R = as.character(getRversion()), survival = as.character(packageVersion("survival")), cmprsk = as.character(packageVersion("cmprsk")), sandwich = as.character(packageVersion("sandwich")), splines = as.character(packageVersion("splines"))),
  cox = lapply(cox, tidy), zph = list(identity = zph("identity"), log = zph("log")),
  cumhaz = list(time = 4, strata = as.character(at$strata), cumhaz = at$cumhaz, se = at$std.chaz),
  aj = list(time = 4, strata = as.character(aj$strata), pstate = aj$pstate[, 2], se = aj$std.err[, 2]),
  finegray_breslow = tidy(breslow), crr = list(beta = as.list(cr$coef), se = list(age = sqrt(cr$var[1, 1]), arm = sqrt(cr$var[2, 2]))),
  aft = sapply(c("weibull", "exponential", "lognormal", "loglogistic"), aft, simplify = FALSE),
  zph_truncated = list(chisq = as.list(three[, "chisq"])), landmark = list(surv = landmark$surv, se = landmark$std.err),
  cause_specific = tidy(coxph(Surv(time, other) ~ age + arm, d, control = tight)),
  finegray = tidy(fgfit), weibull = list(beta = as.list(coef(wb)), scale = wb$scale, se = as.list(sqrt(diag(vcov(wb))))),
  rmst = list(tau = 6, beta = as.list(coef(rm)), se = as.list(sqrt(diag(vcovHC(rm, type = "HC0"))))),
  curves = lapply(curves, tidy), clustered = list(logistic = list(beta = as.list(coef(gl)), se = cl(gl)), poisson = list(beta = as.list(coef(gp)), se = cl(gp)), ols = list(beta = as.list(coef(go)), se = cl(go)))
), digits = 15, auto_unbox = TRUE))
