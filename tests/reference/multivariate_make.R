# Reference values of tests/coordinator_side/pooling/test_multivariate.py: Rscript tests/reference/multivariate_make.R > tests/reference/multivariate.json
# Published: dat.berkey1998 (two outcomes, 5 trials), dat.kalaian1996 (SAT coaching: sites that lack an outcome),
# dat.ishak2007 (deep-brain stimulation, four times).
suppressMessages({library(metafor); library(jsonlite)})
# No one optimiser of rma.mv reaches 1e-6 on all: that of the highest likelihood counts.
ways <- list(list(optimizer = "nlm", gradtol = 1e-12, steptol = 1e-12, iterlim = 5000),
             list(optimizer = "nlminb", rel.tol = 1e-14, iter.max = 5000, eval.max = 10000),
             list(optimizer = "optim", optmethod = "BFGS", reltol = 1e-16, maxit = 5000))
settled <- function(fit) {
  best <- NULL; from <- list()
  for (turn in 1:3) {
    for (way in ways) {
      found <- tryCatch(suppressWarnings(fit(c(way, from))), error = function(e) NULL)
      if (!is.null(found) && (is.null(best) || logLik(found) > logLik(best))) best <- found
    }
    from <- list(tau2.init = pmax(best$tau2, 1e-8), rho.init = pmin(pmax(best$rho, -0.9999), 0.9999))
  }
  best
}
sets <- list()
b <- dat.berkey1998
sets$berkey1998 <- list(yi = b$yi, site = b$trial, term = b$outcome, V = vcalc(vi, cluster = author, rvars = c(v1i, v2i), data = b))
k <- dat.kalaian1996
V <- vcalc(vi, cluster = study, type = outcome, rho = 0.66, data = k)
sets$kalaian1996 <- list(yi = k$yi, site = k$study, term = k$outcome, V = V)
i <- reshape(dat.ishak2007, direction = "long", idvar = "study", varying = list(c("y1i", "y2i", "y3i", "y4i"), c("v1i", "v2i", "v3i", "v4i")),
             v.names = c("yi", "vi"), timevar = "term", times = 1:4)
i <- i[order(i$study, i$term), ]; i <- i[!is.na(i$yi), ]
sets$ishak2007 <- list(yi = i$yi, site = i$study, term = i$term, V = vcalc(vi, cluster = study, time1 = c(1, 6, 12, 24)[i$term], phi = 0.97, data = i))
one <- function(s, struct, method) {
  d <- data.frame(yi = s$yi, site = factor(s$site), term = factor(s$term))
  fit <- if (struct == "FE") rma.mv(yi, s$V, mods = ~ 0 + term, data = d, method = "FE")
    else settled(function(how) rma.mv(yi, s$V, mods = ~ 0 + term, random = ~ term | site, struct = struct, data = d, method = method, control = how))
  psi <- if (struct == "FE") NULL else fit$G
  list(beta = as.numeric(fit$beta), vcov = unname(vcov(fit)), psi = unname(psi), loglik = as.numeric(logLik(fit)), QM = fit$QM, QMp = fit$QMp, QE = fit$QE,
    QM_t = if (struct == "FE") NULL else settled(function(how) rma.mv(yi, s$V, mods = ~ 0 + term, random = ~ term | site, struct = struct, data = d, method = method, test = "t", control = how))[c("QM", "QMp")])
}
out <- list(versions = list(R = as.character(getRversion()), metafor = as.character(packageVersion("metafor")), metadat = as.character(packageVersion("metadat"))))
for (name in names(sets)) {
  s <- sets[[name]]; d <- list(yi = s$yi, site = as.character(s$site), term = as.character(s$term), V = unname(as.matrix(s$V)), fits = list())
  d$fits$FE <- one(s, "FE", "FE")
  for (struct in c("UN", "DIAG", "CS")) for (m in c("REML", "ML")) d$fits[[paste(struct, m, sep = "_")]] <- one(s, struct, m)
  out[[name]] <- d
}
cat(toJSON(out, digits = 15, auto_unbox = TRUE, null = "null"))
