# Reference values of tests/both_sides/estimands/test_repeated_models.py: Rscript tests/reference/clustered_make.R > tests/reference/clustered.json
# nlme's Orthodont: 27 children, each at four ages (Potthoff and Roy 1964).
suppressMessages({library(jsonlite); library(nlme)})
d <- as.data.frame(Orthodont)
d$Subject <- as.character(d$Subject); d$Sex <- as.character(d$Sex)
sure <- lmeControl(msTol = 1e-12, tolerance = 1e-12, msMaxIter = 500)
fit <- lme(distance ~ age + Sex, random = ~ 1 | Subject, data = d, method = "REML", control = sure)
names(d) <- c("distance", "age", "child", "sex")
v <- as.numeric(VarCorr(fit)[, "Variance"])
answers <- list(
  rows = as.list(d), beta = as.list(fixef(fit)), se = as.list(sqrt(diag(vcov(fit)))), correlation = v[1] / sum(v),
  versions = list(R = paste(R.version$major, R.version$minor, sep = "."), nlme = as.character(packageVersion("nlme")))
)
cat(toJSON(answers, digits = 14, auto_unbox = TRUE), "\n")
