# Reference values of tests/both_sides/estimands/test_generalised.py: Rscript tests/reference/generalised_make.R > tests/reference/generalised.json
# Reads tests/reference/generalised.csv (python -m tests.both_sides.estimands.test_generalised writes it).
suppressMessages({library(MASS); library(sandwich); library(jsonlite); library(ordinal)})
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
# Standardised contrasts: the sandwich of the stacked estimating equations, with the observed information.
standardised <- function(fit, observed, high, low, contrast, slope = NULL) {
  x <- model.matrix(fit); n <- nrow(x); mean_of <- family(fit)$linkinv; slope_of <- family(fit)$mu.eta
  score <- residuals(fit, "working") * x * (if (is.null(fit$weights)) 1 else fit$weights)
  own <- score %*% solve(crossprod(x, observed * x))
  side <- function(set) {
    z <- model.matrix(delete.response(terms(fit)), set, xlev = fit$xlevels); eta <- drop(z %*% coef(fit))
    list(mean = mean(mean_of(eta)), moved = (mean_of(eta) - mean(mean_of(eta))) / n +
           drop(own %*% colMeans(slope_of(eta) * z)))
  }
  a <- side(high); b <- side(low)
  if (contrast == "RD") { value <- a$mean - b$mean; moved <- a$moved - b$moved }
  if (contrast == "RR") { value <- log(a$mean / b$mean); moved <- a$moved / a$mean - b$moved / b$mean }
  if (contrast == "OR") {
    value <- qlogis(a$mean) - qlogis(b$mean)
    moved <- a$moved / (a$mean * (1 - a$mean)) - b$moved / (b$mean * (1 - b$mean))
  }
  list(beta = value, se = sqrt(sum(moved^2)))
}
at <- function(column, value) { d[[column]] <- value; d }
crossed <- glm(died ~ arm * age + smoking, binomial, d, control = tight)
p <- fitted(fits$logistic); pc <- fitted(crossed); level <- function(name) factor(name, levels = levels(d$smoking))
x <- model.matrix(fits$logistic); n <- nrow(x); b_age <- coef(fits$logistic)["age"]  # the average slope of age, in closed form
own <- residuals(fits$logistic, "response") * x; own <- own %*% solve(crossprod(x, p * (1 - p) * x))
along <- colMeans(b_age * p * (1 - p) * (1 - 2 * p) * x); along["age"] <- along["age"] + mean(p * (1 - p))
slope <- b_age * p * (1 - p); moved <- (slope - mean(slope)) / n + drop(own %*% along)
contrasts <- list(
  "standardised(died, of = arm) ~ arm + age + smoking + arm:age" = list(
    "arm" = standardised(crossed, pc * (1 - pc), at("arm", 1), at("arm", 0), "RD")),
  "standardised(died, of = smoking, contrast = OR) ~ age + arm + smoking" = list(
    "smoking[former]" = standardised(fits$logistic, p * (1 - p), at("smoking", level("former")), at("smoking", level("never")), "OR"),
    "smoking[current]" = standardised(fits$logistic, p * (1 - p), at("smoking", level("current")), at("smoking", level("never")), "OR")),
  "standardised(died, of = age, contrast = RR) ~ age/10 + arm + smoking" = list(
    "age/10" = standardised(fits$logistic, p * (1 - p), at("age", d$age + 10), d, "RR")),
  "standardised(cost, of = arm, model = gamma) ~ age + arm + smoking" = list(
    "arm" = standardised(fits$gamma, d$cost / fitted(fits$gamma), at("arm", 1), at("arm", 0), "RD")),
  "standardised(died, of = age, contrast = slope) ~ age + arm + smoking" = list(
    "age" = list(beta = mean(slope), se = sqrt(sum(moved^2))))
)
describe <- function(rows) c(list(mean = mean(rows), sd = sd(rows)), setNames(as.list(quantile(rows, c(.25, .5, .75), type = 7)), c("q1", "median", "q3")))
smd <- function(a, b, va = var(a), vb = var(b)) (mean(b) - mean(a)) / sqrt((va + vb) / 2)  # tableone's, of means and of shares
share <- function(v) mean(v) * (1 - mean(v))
drug <- d$arm == 1; former <- as.numeric(d$smoking == "former")
table_one <- list(all = describe(d$age), group = describe(d$age[drug]), smd = smd(d$age[!drug], d$age[drug]),
                  share = mean(former[drug]), smd_share = smd(former[!drug], former[drug], share(former[!drug]), share(former[drug])),
                  se_mean = sd(d$age) / sqrt(nrow(d)), se_share = 1 / sqrt(sum(drug) * share(former[drug])))
d$stage <- cut(d$age + 6 * d$arm, c(-Inf, 52, 58, 66, Inf), labels = c("I", "II", "III", "IV"), ordered_result = TRUE)
staged <- clm(stage ~ cost + smoking + arm, data = d, control = clm.control(gradTol = 1e-12))
slopes <- names(staged$beta)
ordinal <- list(beta = as.list(staged$beta), se = list(model = as.list(sqrt(diag(vcov(staged)))[slopes])))
answers <- list(
  ordinal = ordinal,
  table_one = table_one,
  standardised = contrasts,
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."), MASS = as.character(packageVersion("MASS")),
                  ordinal = as.character(packageVersion("ordinal")), sandwich = as.character(packageVersion("sandwich"))),
  fits = sapply(names(fits), one, simplify = FALSE),
  theta = fits$negbin$theta,
  weighted_probit = list(beta = as.list(coef(weighted)), se = list(model = as.list(sqrt(diag(vcov(weighted))))))
)
cat(toJSON(answers, digits = 12, auto_unbox = TRUE, pretty = TRUE), "\n")
