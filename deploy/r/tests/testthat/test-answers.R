test_that("an answer prints its cautions before its number, and its scale with it", {
  lines <- capture.output(print(answer("interaction")))
  caution <- grep("^caution", lines)
  number <- grep("^pooled odds ratio", lines)
  table <- grep("se of its log", lines)
  expect_length(caution, 1)
  expect_true(caution < table && table < number)
  document <- recorded("cox")
  shown <- document$pooled$shown
  expect_equal(format(answer("cox")),
               sprintf("pooled hazard ratio %#.4g (95 %% CI %#.4g to %#.4g; REML, adhoc, 3 sites)", shown$estimate,
                       shown$ci_lb, shown$ci_ub))
  whole <- capture.output(print(summary(answer("interaction"))))
  expect_true(grep("^caution", whole)[1] < grep("^fixed effect", whole))
  expect_true(any(grepl("age:arm\\[drug\\]", whole)))
})

test_that("a secure sum is the answer, and what the sites released stands beside it", {
  document <- recorded("cox")
  document$summed <- list(method = "secure sum", test = "t", beta = 0.1, se = 0.02, zval = 5, pval = 0.01, ci_lb = 0.05,
                          ci_ub = 0.15, sites = list("alpha", "beta"),
                          shown = list(estimate = exp(0.1), ci_lb = exp(0.05), ci_ub = exp(0.15)))
  found <- tributarymeta:::answered(document)
  expect_match(format(found), "pooled hazard ratio 1.105 .*; secure sum, t, 2 sites")
  whole <- capture.output(print(summary(found)))
  expect_true(grep("^secure sum, 2 sites", whole) < grep("^releases, fixed effect", whole))
  expect_true(any(grepl("^releases, random effects", whole)))
  first <- tidy(found)[1, ]
  expect_equal(c(first$conf.low, first$conf.high, first$statistic), c(0.05, 0.15, 5))
  skip_if_not_installed("metafor")
  expect_warning(suppressMessages(as_rma(found)), "another number")
})

test_that("what others wrote reaches a terminal as text", {
  document <- recorded("cox")
  document$title <- "\033]0;hostile\007 title"
  document$estimates[[1]]$reason <- "gone\033[2J"
  expect_false(any(grepl("[\001-\010\013-\037]", capture.output(print(tributarymeta:::answered(document))))))
})

test_that("tidy has broom's columns, for every term, on the scale that it says", {
  document <- recorded("cox")
  rows <- tidy(answer("cox"))
  expect_equal(names(rows)[1:8], c("term", "type", "estimate", "std.error", "statistic", "p.value", "conf.low", "conf.high"))
  expect_equal(rows$term, unlist(document$terms))
  expect_equal(rows$scale, rep("log", 3))
  first <- rows[1, ]
  expect_identical(c(first$estimate, first$std.error, first$p.value, first$conf.low, first$conf.high),
                   unlist(document$pooled[c("beta", "se", "pval", "ci_lb", "ci_ub")], use.names = FALSE))
  expect_equal(rows$conf.high[2], log(document$table[[2]]$ci_ub))
  back <- tidy(answer("cox"), exponentiate = TRUE)
  expect_equal(back$estimate, vapply(document$table, function(one) one$estimate, 0))
  expect_equal(back$scale, rep("identity", 3))
  expect_equal(back$std.error, rows$std.error)
  expect_false("conf.low" %in% names(tidy(answer("cox"), conf.int = FALSE)))
  sites <- tidy(answer("cox"), include_studies = TRUE)
  expect_equal(sites$term[sites$type == "study"], c("alpha", "beta", "gamma"))
  share <- tidy(answer("survival"), exponentiate = TRUE)
  expect_equal(share$conf.low, recorded("survival")$pooled$shown$ci_lb)
  expect_match(tidy(answer("interaction"))$cautions[3], "flow")
})

test_that("glance has the heterogeneity that was sent", {
  document <- recorded("cox")
  found <- glance(answer("cox"))
  expect_identical(unlist(found[c("i.squared", "h.squared", "tau.squared", "cochran.qe", "p.value.cochran.qe")], use.names = FALSE),
                   unlist(document$pooled[c("I2", "H2", "tau2", "QE", "QEp")], use.names = FALSE))
  expect_equal(found$nobs, 3L)
})

test_that("an answer without an estimate at a site says why", {
  document <- recorded("cox")
  document$estimates[[2]][c("yi", "vi_sampling", "vi_privacy")] <- list(NULL)
  document$estimates[[2]]$reason <- "fewer than 5 events"
  shown <- capture.output(print(tributarymeta:::answered(document)))
  expect_true(any(grepl("fewer than 5 events", shown)))
  expect_true(is.na(as.data.frame(tributarymeta:::answered(document))$yi[2]))
})

test_that("as_rma is metafor's fit of the same estimates, and refuses another number", {
  skip_if_not_installed("metafor")
  for (name in c("cox", "survival", "interaction")) {
    document <- recorded(name)
    fit <- suppressMessages(as_rma(answer(name)))
    expect_s3_class(fit, "rma")
    expect_equal(c(fit$beta[[1]], fit$se, fit$pval, fit$ci.lb, fit$tau2, fit$QE),
                 unlist(document$pooled[c("beta", "se", "pval", "ci_lb", "tau2", "QE")], use.names = FALSE), tolerance = 1e-6)
  }
  expect_message(as_rma(answer("interaction")), "caution")
  other <- recorded("cox")
  other$pooled$beta <- other$pooled$beta + 1e-4
  expect_error(as_rma(tributarymeta:::answered(other)), class = "tributary_E_INTEGRITY")
  wider <- recorded("cox")
  wider$pooled$se <- wider$pooled$se * 1.1
  expect_warning(as_rma(tributarymeta:::answered(wider)), "narrower")
})

test_that("a figure is the coordinator's file, or metafor's drawing", {
  stage <- asked_of(function(path) NULL)
  mine <- tributarymeta:::answered(recorded("cox"), stage$study)
  expect_equal(forest(mine, file = "a.svg", kind = "funnel"), "a.svg")
  expect_equal(stage$calls$made[[1]]$path[5], "funnel.svg")
  expect_equal(stage$calls$made[[1]]$file, "a.svg")
  expect_error(figure(mine, "a.doc"), "end in", class = "tributary_refusal")
  skip_if_not_installed("metafor")
  file <- tempfile(fileext = ".pdf")
  grDevices::pdf(file)
  forest(mine)
  metafor::forest(mine)
  plot(mine)
  forest(as_rma(mine))
  grDevices::dev.off()
  expect_gt(file.size(file), 1000)
})
