# Reference values of tests/test_generalised.py: Rscript tests/reference/generalised_make.R > tests/reference/generalised.json
# Reads tests/reference/generalised.csv (python -m tests.test_generalised writes it).
suppressMessages({library(MASS); library(sandwich); library(jsonlite); library(nnet)})
d <- read.csv("tests/reference/generalised.csv")
d$smoking <- factor(d$smoking, levels = c("never", "former", "current"))
tight <- list(epsilon = 1e-14, maxit = 200)
fits <- list(
  risk_ratio = glm(died ~ age + arm + smoking, poisson, d, control = tight),
  log_binomial = glm(died ~ age + arm, binomial("log"), d, start = c(-1.5, 0, 0), control = tight),
  quasipoisson = glm(k ~ age + arm + smoking + offset(log(years)), quasipoisson, d, control = tight),
  negbin = glm.nb(k ~ age + arm + smoking + offset(log(years)), d, control = glm.control(epsilon = 1e-14, maxit = 200)),
  probit = glm(died ~ age + arm + smoking, binomial("probit"), d, control = tight),
  cloglog = glm(died ~ age + arm + smoking, binomial("cloglog"), d, control = tight),
  gamma = glm(cost ~ age + arm + smoking, Gamma("log"), d, control = tight),
  logistic = glm(died ~ age + arm + smoking, binomial, d, control = tight),
  poisson = glm(k ~ age + arm + smoking + offset(log(years)), poisson, d, control = tight),
  ols = lm(cost ~ age + arm + smoking, d)
)
one <- function(name) {
  fit <- fits[[name]]
  errors <- list(model = sqrt(diag(vcov(fit))))
  for (kind in c("HC0", "HC1", "HC2", "HC3")) errors[[kind]] <- sqrt(diag(vcovHC(fit, type = kind)))
  list(beta = as.list(coef(fit)), se = lapply(errors, as.list))
}
weighted <- glm(died ~ age + arm, binomial("probit"), d, weights = w, control = tight)
answers <- list(
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."), MASS = as.character(packageVersion("MASS")),
                  sandwich = as.character(packageVersion("sandwich"))),
  fits = sapply(names(fits), one, simplify = FALSE),
  theta = fits$negbin$theta,
  weighted_probit = list(beta = as.list(coef(weighted)), se = list(model = as.list(sqrt(diag(vcov(weighted))))))
)
cat(toJSON(answers, digits = 12, auto_unbox = TRUE, pretty = TRUE), "\n")
