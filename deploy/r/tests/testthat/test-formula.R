text <- function(formula) tributarymeta:::question_text(formula)

test_that("formulas as R users write them are questions of the grammar", {
  expect_equal(text(Surv(time, cvd) ~ sbp + strata(sex)), "Surv(time, cvd) ~ sbp + strata(sex)")
  expect_equal(text(Surv(time = years, event = num > 0) ~ sbp / 10), "Surv(years, num > 0) ~ sbp/10")
  expect_equal(text(survival::Surv(event = died, years) ~ 1), "Surv(years, died) ~ 1")
  expect_equal(text(y ~ x + as.factor(z) + offset(log(years))), "y ~ x + factor(z) + offset(log(years))")
  expect_equal(text(y ~ a * b - a + a:b - 1), "y ~ a * b - a + a:b - 1")
  expect_equal(text(y ~ I((x + 1)^2) + I(x / z)), "y ~ I((x + 1)^2) + I(x/z)")
  expect_equal(text(~ sbp > 140 | !(arm == "drug")), "~ sbp > 140 | !(arm == \"drug\")")
  expect_equal(text(I(sex == "f") ~ age), "I(sex == \"f\") ~ age")
  expect_equal(text("cox(time, cvd) ~ sbp/10"), "cox(time, cvd) ~ sbp/10")
})

test_that("a formula that a program made keeps its meaning", {
  made <- eval(substitute(y ~ I(a), list(a = call("*", quote(x), call("+", quote(z), 1)))))
  expect_equal(text(made), "y ~ I(x * (z + 1))")
  power <- eval(substitute(y ~ I(a), list(a = call("^", call("-", quote(x)), 2))))
  expect_equal(text(power), "y ~ I((-x)^2)")
  minus <- eval(substitute(y ~ I(a), list(a = call("-", quote(x), call("-", quote(z), 1)))))
  expect_equal(text(minus), "y ~ I(x - (z - 1))")
})

test_that("dots in names stand for underscores", {
  expect_equal(text(is.dead ~ chol.total / 40 + strata(ward.no)), "is_dead ~ chol_total/40 + strata(ward_no)")
  expect_error(text(y ~ `a b`), class = "tributary_refusal")
  expect_error(text(y ~ .), "dictionary", class = "tributary_E_PARAMETER")
})

test_that("what R and the grammar read differently is refused with what to write", {
  said <- function(formula) tryCatch(text(formula), tributary_refusal = function(e) e$next_step)
  expect_match(said(y ~ a / b), "a + a:b", fixed = TRUE)
  expect_match(said(y ~ (a + b)^2), "a*b", fixed = TRUE)
  expect_match(said(y ~ (1 | site)), "random effects")
  expect_match(said(data$y ~ x), "no data frame")
  expect_equal(text(Surv(start, stop, died) ~ x), "Surv(start, stop, died) ~ x")
  expect_match(said(Surv(time, status, entry = start) ~ x), "by their place", fixed = TRUE)
  expect_error(text(42), class = "tributary_refusal")
})

test_that("filters, numbers and levels are written in the grammar", {
  option <- tributarymeta:::option_text
  expect_equal(option(~ age >= 60 & sex == "f", "subset"), "age >= 60 & sex == \"f\"")
  expect_equal(option(~ !(arm %in% c("low", "high")) | x != -1, "subset"),
               "!((arm == \"low\" | arm == \"high\")) | x != -1")
  expect_equal(option(~ sex == TRUE, "subset"), "sex == 1")
  expect_equal(option(~ name == "O'Hara", "subset"), "name == \"O'Hara\"")
  expect_equal(option(5, "at"), "5")
  expect_equal(as.numeric(option(0.1 + 0.2, "at")), 0.1 + 0.2)
  expect_equal(option(1e-7, "at"), "0.0000001")
  expect_error(option(~ a && b, "subset"), "Write &", class = "tributary_refusal")
  expect_error(option(c(1, 2), "at"), class = "tributary_refusal")
})
