test_that("a question is one POST, with its parts as texts", {
  stage <- asked_of(function(path) recorded("cox"))
  found <- cox(stage$study, Surv(time, cvd) ~ sbp / 10, subset = ~ age >= 60, ties = "breslow", stop = 5, term = "sbp")
  expect_s3_class(found, "tributary_answer")
  made <- stage$calls$made[[1]]
  expect_equal(made$verb, "POST")
  expect_equal(made$path, c("studies", "cvd", "queries"))
  body <- jsonlite::fromJSON(tributarymeta:::to_json(made$body))
  expect_equal(body$kind, "cox")
  expect_equal(body$formula, "Surv(time, cvd) ~ sbp/10")
  expect_equal(body$options, list(subset = "age >= 60", ties = "breslow", stop = "5"))
  expect_equal(body[c("term", "method", "test", "level", "wave", "label")],
               list(term = "sbp", method = "REML", test = "adhoc", level = 0.95, wave = 0L, label = ""))
})

test_that("looks by wave are one POST, a row each, and drawn from their answers", {
  look <- function(k, crossed) {
    list(label = paste("wave", k), time = k / 2, information = 9 * k, z = 1.1 * k, boundary = 2.2, alpha_spent = 0.02 * k,
         nominal = 0.03, beta = 0.1, ci_lb = -0.2, ci_ub = 0.4, crossed = crossed)
  }
  said <- list(title = "Hazard ratio", sentence = "wave 2 is beyond its boundary", spending = "pocock",
               looks = list(look(1, FALSE), look(2, TRUE)), results = list(`1` = "aa", `2` = "bb"),
               heads = list("as of", "hazard ratio"), rows = list(list("wave 1", "1.105"), list("wave 2", "1.105")),
               missing = list(`3` = "nothing arrived"), notes = list("read this"))
  stage <- asked_of(function(path) said)
  found <- monitor(stage$study, Surv(time, cvd) ~ sbp / 10, kind = "cox", spending = "pocock", subset = ~ age >= 60)
  made <- stage$calls$made[[1]]
  expect_equal(made$path, c("studies", "cvd", "looks"))
  expect_equal(made$body[c("formula", "kind", "spending")],
               list(formula = "Surv(time, cvd) ~ sbp/10", kind = "cox", spending = "pocock"))
  expect_equal(made$body$options, list(subset = "age >= 60"))
  shown <- as.data.frame(found)
  expect_equal(shown$label, c("wave 1", "wave 2"))
  expect_equal(shown$crossed, c(FALSE, TRUE))
  expect_output(print(found), "left out  wave 3: nothing arrived")
  figure(found, file.path(tempdir(), "looks.svg"))
  made <- stage$calls$made[[2]]
  expect_equal(made$path, c("studies", "cvd", "looks.svg"))
  expect_equal(made$query, list(results = "aa,bb", spending = "pocock"))
})

test_that("a check reads a question without asking it, and a planned analysis is confirmatory", {
  stage <- asked_of(function(path) if ("checks" %in% path) list(estimand = "mean(sbp)") else recorded("cox"))
  expect_equal(mean(stage$study, ~sbp, check = TRUE)$estimand, "mean(sbp)")
  planned(stage$study, "adjusted")
  made <- stage$calls$made
  expect_equal(made[[1]]$path[3], "checks")
  expect_equal(made[[2]]$body$label, "confirmatory")
  expect_equal(made[[2]]$body$kind, "")
  expect_error(ask(stage$study, "mean(sbp)", "", 5), "named", class = "tributary_refusal")
  expect_error(cox("cvd", y ~ x), "study\\(connection", class = "tributary_refusal")
})

test_that("a request carries the token, escapes names and goes to no other place", {
  made <- tributarymeta:::prepared("https://hub.example.org:8445", "s3cret", "/ca.pem", "POST",
                                   c("studies", "a/b", "queries"), list(after = 3), list(formula = "mean(sbp)"))
  expect_equal(made$url, "https://hub.example.org:8445/v1/studies/a%2Fb/queries?after=3")
  expect_equal(made$headers$Authorization, "Bearer s3cret")
  expect_equal(made$options$followlocation, FALSE)
  expect_equal(made$options$cainfo, "/ca.pem")
})

test_that("a refusal is a condition with what must hold, was given, and to do", {
  said <- list(code = "E_ROLE", must = "the role must be lead", given = "analyst", next_step = "Ask the lead.",
               detail = "the role must be lead, got analyst. Ask the lead.\033[31m")
  response <- httr2::response(403, headers = "Content-Type: application/problem+json",
                              body = charToRaw(tributarymeta:::to_json(said)))
  caught <- tryCatch(tributarymeta:::read_response(response), tributary_refusal = identity)
  expect_s3_class(caught, c("tributary_E_ROLE", "tributary_refusal", "error", "condition"), exact = TRUE)
  expect_equal(caught[c("must_hold", "given", "next_step", "code", "status")],
               list(must_hold = "the role must be lead", given = "analyst", next_step = "Ask the lead.",
                    code = "E_ROLE", status = 403L))
  expect_false(grepl("\033", conditionMessage(caught), fixed = TRUE))
  elsewhere <- httr2::response(502, headers = "Content-Type: text/html", body = charToRaw("<html>"))
  expect_error(tributarymeta:::read_response(elsewhere), "HTTP 502", class = "tributary_E_NETWORK")
})

test_that("a connection needs https, a token and an authority that is there", {
  expect_error(connect("http://hub.example.org", "x"), "https", class = "tributary_refusal")
  expect_error(connect("https://hub.example.org", ""), "token", class = "tributary_E_ACCESS")
  expect_error(connect("https://hub.example.org", "no-such.token.json"), "exist", class = "tributary_E_DATA_FILE")
  expect_error(connect("https://hub.example.org", "x", ca = "no-such.pem"), "authority", class = "tributary_refusal")
  file <- tempfile(fileext = ".json")
  writeLines("{\"other\": 1}", file)
  expect_error(connect("https://hub.example.org", file), "another file", class = "tributary_E_ACCESS")
})

test_that("studies, dictionary and record are data frames", {
  stage <- asked_of(function(path) recorded(if ("log" %in% path) "log" else if ("dictionary" %in% path) "dictionary" else "studies"))
  rows <- studies(stage$study$connection)
  expect_equal(rows[c("study", "sites", "n")], data.frame(study = "cvd", sites = 3L, n = 480))
  columns <- dictionary(stage$study)
  expect_equal(columns$values[columns$column == "sbp"], "50 to 350")
  expect_equal(columns$values[columns$column == "arm"], "placebo, drug")
  expect_equal(questions(stage$study)$label, rep("exploratory", 3))
  expect_error(study(stage$study$connection, "cvt"), "Did you mean \"cvd\"", class = "tributary_E_ACCESS")
})

test_that("releases are asked for page by page, and chosen by the coordinator", {
  line <- function(wave, site) {
    list(wave = wave, site = site, n = 5, release_id = paste0(site, wave), epsilon = 1, epsilon_given = "",
         accepted_day = "2026-01-05", withdrawn = "")
  }
  pages <- list(list(releases = list(line(2, "b"), line(1, "a")), more = 7), list(releases = list(line(1, "b")), more = NULL))
  stage <- asked_of(function(path) {
    page <- pages[[1]]
    pages <<- pages[-1]
    page
  })
  found <- releases(stage$study, site = "b")
  expect_equal(found$release_id, c("a1", "b1", "b2"))
  expect_equal(lapply(stage$calls$made, function(one) one$query),
               list(list(most = 200, site = "b"), list(most = 200, after = 7, site = "b")))
})

test_that("a harmonised question names its column, site and study", {
  stage <- asked_of(function(path) recorded("cox"))
  harmonise(stage$study, c("chol", "hdl"), to = "north", sbp ~ chol, kind = "ols", densities = "cvd-pair", robust = "HC3")
  body <- stage$calls$made[[1]]$body
  expect_equal(body[c("formula", "kind", "harmonise", "to", "densities", "options")],
               list(formula = "sbp ~ chol", kind = "ols", harmonise = "chol,hdl", to = "north", densities = "cvd-pair",
                    options = list(robust = "HC3")))
})

test_that("a network is asked by its statistic", {
  stage <- asked_of(function(path) recorded("cox"))
  network(stage$study, ~triangle)
  network(stage$study, assortativity ~ ward)
  expect_equal(lapply(stage$calls$made, function(one) one$body$formula), list("triangle", "assortativity ~ ward"))
})

test_that("poisson, quasipoisson, gamma and mean are still what they are in stats and base", {
  expect_equal(gamma(5), 24)
  expect_equal(quasipoisson()$family, "quasipoisson")
  expect_equal(quasipoisson("identity")$link, "identity")
  expect_equal(sapply(1:3, gamma), c(1, 1, 2))
  expect_equal(poisson()$link, "log")
  expect_equal(poisson("identity")$link, "identity")
  expect_equal(poisson(link = sqrt)$link, "sqrt")
  expect_equal(unname(stats::coef(stats::glm(c(1, 2, 3) ~ 1, family = poisson))), log(2))
  expect_equal(mean(1:3), 2)
})
