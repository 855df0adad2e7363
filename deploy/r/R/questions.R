#' Ask a question of a study
#'
#' Each site's privatised rows answer by themselves, and the answers are pooled. Every question stands in the study's
#' record. A formula is written as for [stats::glm()] or `survival::coxph()`; it is translated and never run, so
#' columns are those of the study's dictionary and no variable of R is looked up.
#'
#' `sbp/10` is the column in units of ten. Dots in names stand for underscores: `chol.total` is the column
#' `chol_total`. `factor(x)` has the dictionary's first level as its reference, at every site. `Surv()` needs no
#' package.
#'
#' @param study From [study()].
#' @param x The same, for [mean()] and [stats::quantile()].
#' @param formula A formula, or a text in the grammar of questions; for `ask()` also the whole question in one text,
#'   for `planned()` a planned analysis' name, and for `network()` a statistic of a network, as `~ triangle`. `mean`, `proportion` and `correlation` take one without a left
#'   side: `~ sbp`, `~ sbp > 140`, `~ sbp + age`.
#' @param kind What to estimate; blank where the text says.
#' @param ... Parts of the question, as its kind takes them: `subset`, `weights`, `robust`, `ties`, `start`, `stop`,
#'   `at`, `tau`, `transform`, `dist`, `df`, `measure`, `structure`, `of`, `contrast`, `model`; and of `cox()` and the others also all settings of `ask()`. `subset` and
#'   `weights` are one-sided formulas or texts: `subset = ~ age >= 60`.
#' @param term Which term is pooled as the answer; the first when blank. [tidy()] gives all.
#' @param method,test,level How it is pooled: as of metafor's `rma()`, with `level` in (0, 1).
#' @param wave,as_of The table as of this wave (0: the newest), and as of one of its revisions.
#' @param label `"confirmatory"` or `"exploratory"`; by the plan when blank.
#' @param at,tau The time of `km()`, `cumhaz()` and `cuminc()`, and the horizon of
#'   `rmst()` and `rmst_regression()`, or which quantile, 0.5 being the median.
#' @param competing What ends a follow-up before the event can: `~ died`, `~ cause == 2`, or the same as text.
#' @param of The exposure of `standardised()`: a column of the formula, as text or `~ arm`.
#' @param by Of `table_one()`: a column with levels, as text or `~ arm`, or `NULL`.
#' @param breaks Of `histogram()`: edges of the bins, or how many there are between the column's public bounds.
#' @param check `TRUE` reads the question without asking it: no line stands in the record.
#' @return A `tributary_answer`, but of `table_one()`, `crosstab()` and `histogram()` a data frame with a row per site (and all of them pooled), group,
#'   column and statistic; with `check`, a list of the question in one spelling (`estimand`), the planned
#'   analysis that it is (`planned`), its `label` and its `kind`.
#' @seealso [tidy.tributary_answer()], [as_rma()], [figure()]
#' @examples
#' \dontrun{
#' cvd <- study(connect("https://hub.example.org:8445", "ada.token.json"), "cvd")
#' cox(cvd, Surv(time, cvd) ~ sbp/10 + age/10 + strata(sex))
#' logistic(cvd, cvd ~ age + factor(smoking), subset = ~ age >= 60)
#' mean(cvd, ~ sbp)
#' }
#' @export
ask <- function(study, formula, kind = "", ..., term = "", method = "REML", test = "adhoc", level = 0.95, wave = 0,
                as_of = NULL, label = "", check = FALSE) {
  settings <- list(term = term_text(term), method = method, test = test, level = level, wave = wave, as_of = as_of,
                   label = label)
  asked(study, formula, kind, list(...), settings, check)
}

question <- function(formula, kind, options, settings) {
  if (length(options) && (is.null(names(options)) || any(names(options) == ""))) {
    refuse("every part of a question after its formula must be named", given = "one without a name",
           next_step = "Write for example: at = 5.")
  }
  options <- Filter(Negate(is.null), options)
  body <- c(list(formula = question_text(formula), kind = kind), settings)
  if (length(options)) body$options <- Map(option_text, options, names(options))
  body
}

asked <- function(study, formula, kind, options, settings, check = FALSE) {
  body <- question(formula, kind, options, settings)
  if (check) return(of_study(study, "POST", "checks", body = body))
  answered(of_study(study, "POST", "queries", body = body), study)
}

term_text <- function(term) if (inherits(term, "formula")) spelled(term[[2]], term = TRUE) else term

#' @rdname ask
#' @export
planned <- function(study, formula, ..., label = "confirmatory") ask(study, formula, ..., label = label)

#' @rdname ask
#' @export
cox <- function(study, formula, ...) ask(study, formula, "cox", ...)

#' @rdname ask
#' @export
linear <- function(study, formula, ...) ask(study, formula, "ols", ...)

#' @rdname ask
#' @export
logistic <- function(study, formula, ...) ask(study, formula, "logistic", ...)

#' @rdname ask
#' @export
poisson <- function(study, formula, ...) {
  if (missing(study) || is_link(substitute(study)) || !is_study(study)) return(hidden(quote(stats::poisson)))
  ask(study, formula, "poisson", ...)
}

#' @rdname ask
#' @export
quasipoisson <- function(study, formula, ...) {
  if (missing(study) || is_link(substitute(study)) || !is_study(study)) return(hidden(quote(stats::quasipoisson)))
  ask(study, formula, "quasipoisson", ...)
}

#' @rdname ask
#' @export
gamma <- function(study, formula, ...) {
  if (missing(study) || !is_study(study)) return(hidden(quote(base::gamma)))
  ask(study, formula, "gamma", ...)
}

# Of anything but a study these names are R's own: the families of glm(), and the gamma function.
is_study <- function(x) inherits(x, "tributary_study")
is_link <- function(given) is.symbol(given) && as.character(given) %in% c("log", "identity", "sqrt")
hidden <- function(own) {
  call <- sys.call(-1)
  call[[1]] <- own
  eval(call, parent.frame(2))
}

#' @rdname ask
#' @export
risk_ratio <- function(study, formula, ...) ask(study, formula, "risk_ratio", ...)

#' @rdname ask
#' @export
log_binomial <- function(study, formula, ...) ask(study, formula, "log_binomial", ...)

#' @rdname ask
#' @export
negbin <- function(study, formula, ...) ask(study, formula, "negbin", ...)

#' @rdname ask
#' @export
probit <- function(study, formula, ...) ask(study, formula, "probit", ...)

#' @rdname ask
#' @export
cloglog <- function(study, formula, ...) ask(study, formula, "cloglog", ...)

#' @rdname ask
#' @export
ordinal <- function(study, formula, ...) ask(study, formula, "ordinal", ...)

#' @rdname ask
#' @export
multinomial <- function(study, formula, ...) ask(study, formula, "multinomial", ...)

#' @rdname ask
#' @export
gee <- function(study, formula, ...) ask(study, formula, "gee", ...)

#' @rdname ask
#' @export
mixed <- function(study, formula, ...) ask(study, formula, "mixed", ...)

#' @rdname ask
#' @method quantile tributary_study
#' @rawNamespace S3method(stats::quantile, tributary_study)
quantile.tributary_study <- function(x, formula, tau = 0.5, ...) ask(x, formula, "quantile", tau = tau, ...)

#' @rdname ask
#' @export
network <- function(study, formula, ...) {
  if (inherits(formula, "formula") && length(formula) == 2) formula <- spelled(formula[[2]])
  ask(study, formula, "network", ...)
}

#' @rdname ask
#' @export
km <- function(study, formula, at, ...) ask(study, formula, "km", at = at, ...)

#' @rdname ask
#' @export
cumhaz <- function(study, formula, at, ...) ask(study, formula, "cumhaz", at = at, ...)

#' @rdname ask
#' @export
cuminc <- function(study, formula, competing, at, ...) ask(study, formula, "cuminc", competing = competing, at = at, ...)

#' @rdname ask
#' @export
rmst <- function(study, formula, tau, ...) ask(study, formula, "rmst", tau = tau, ...)

#' @rdname ask
#' @export
rmst_regression <- function(study, formula, tau, ...) ask(study, formula, "rmst_regression", tau = tau, ...)

#' @rdname ask
#' @export
schoenfeld <- function(study, formula, ...) ask(study, formula, "schoenfeld", ...)

#' @rdname ask
#' @export
finegray <- function(study, formula, competing, ...) ask(study, formula, "finegray", competing = competing, ...)

#' @rdname ask
#' @export
aft <- function(study, formula, ...) ask(study, formula, "aft", ...)

#' @rdname ask
#' @export
flexible <- function(study, formula, ...) ask(study, formula, "flexible", ...)

#' @rdname ask
#' @export
logrank <- function(study, formula, ...) ask(study, formula, "logrank", ...)

#' @rdname ask
#' @export
two_by_two <- function(study, formula, ...) ask(study, formula, "two_by_two", ...)

#' @rdname ask
#' @export
difference <- function(study, formula, ...) ask(study, formula, "difference", ...)

#' @rdname ask
#' @export
ratio <- function(study, formula, ...) ask(study, formula, "ratio", ...)

#' @rdname ask
#' @export
proportion <- function(study, formula, ...) ask(study, formula, "proportion", ...)

#' @rdname ask
#' @export
correlation <- function(study, formula, ...) ask(study, formula, "correlation", ...)

#' @rdname ask
#' @export
standardised <- function(study, formula, of, ...) ask(study, formula, "standardised", of = of, ...)

#' @rdname ask
#' @export
table_one <- function(study, formula, by = NULL, ...) described(ask(study, formula, "table_one", by = by, ...))

#' @rdname ask
#' @export
crosstab <- function(study, formula, ...) described(ask(study, formula, "crosstab", ...))

#' @rdname ask
#' @export
histogram <- function(study, formula, breaks = 10, ...) {
  if (length(breaks) > 1) breaks <- sprintf("c(%s)", paste(breaks, collapse = ", "))
  described(ask(study, formula, "histogram", breaks = breaks, ...))
}

described <- function(answer) {
  document <- answer$document
  said <- unique(unlist(c(document$cautions, lapply(document$table, function(one) one$cautions))))
  for (one in said) message("caution: ", plain(one))
  frame(document$cells, function(cell) {
    lapply(cell[c("site", "group", "column", "level", "statistic", "estimate", "ci_lb", "ci_ub", "n", "n_missing", "reason")],
           value_or)
  })
}

#' @rdname ask
#' @export
mean.tributary_study <- function(x, formula, ...) ask(x, formula, "mean", ...)

#' A question as it stands, and with a column on one site's scale
#'
#' Where hospitals measure a column differently and a study of densities stands beside the one with rows: the answer
#' as it stands, and beside it the one with that column mapped onto one site's scale. The maps are made of what the
#' study of densities released, so nothing more is spent; they assume that the sites' patients are alike in the column.
#'
#' @inheritParams ask
#' @param column What hospitals measure differently; two or three columns, where their density was released together.
#' @param to The site whose scale counts.
#' @param densities The study of densities; `STUDY-densities` when blank.
#' @return A `tributary_harmonised`, which is a `tributary_answer` too: [tidy()], [as_rma()] and the others are of the
#'   answer as it stands, printing shows both with what is to be read first, and [as.data.frame()] has the columns
#'   `yi_harmonised`, `vi_harmonised`, `vi_common_harmonised`, `vi_map` (the variance of the site's own map, in no other
#'   column) and `vi_common_map` (that of the pooled estimate by all maps, alike in each row).
#' @examples
#' \dontrun{
#' harmonise(cvd, "chol", to = "north", Surv(time, cvd) ~ chol/40 + age, kind = "cox")
#' }
#' @export
harmonise <- function(study, column, to, formula, kind = "", ..., densities = "", term = "", method = "REML",
                      test = "adhoc", level = 0.95, wave = 0, as_of = NULL, label = "", check = FALSE) {
  settings <- list(term = term_text(term), method = method, test = test, level = level, wave = wave, as_of = as_of,
                   label = label, harmonise = paste(column, collapse = ","), to = to, densities = densities)
  asked(study, formula, kind, list(...), settings, check)
}

#' A question as of each wave, against boundaries that allow for all looks
#'
#' One error rate, 1 less the level, is spent over the waves of the plan; each wave's question stands in the record.
#'
#' @inheritParams ask
#' @param spending `"obrien-fleming"` or `"pocock"`.
#' @param x A `tributary_monitoring`.
#' @return A `tributary_monitoring`; [as.data.frame()] gives a row per look on the analysis scale, with its boundary
#'   and its repeated confidence interval, and [figure()] saves the drawing.
#' @examples
#' \dontrun{
#' monitor(cvd, Surv(time, cvd) ~ sbp/10, kind = "cox", spending = "pocock")
#' }
#' @export
monitor <- function(study, formula, kind = "", ..., spending = "obrien-fleming", term = "", method = "REML",
                    test = "adhoc", level = 0.95, label = "") {
  settings <- list(term = term_text(term), method = method, test = test, level = level, label = label,
                   spending = spending)
  structure(list(document = of_study(study, "POST", "looks", body = question(formula, kind, list(...), settings)),
                 study = study), class = "tributary_monitoring")
}

#' @rdname monitor
#' @export
as.data.frame.tributary_monitoring <- function(x, ...) {
  frame(x$document$looks, function(one) {
    list(label = one$label, time = one$time, information = one$information, z = one$z, boundary = one$boundary,
         alpha_spent = one$alpha_spent, nominal = one$nominal, beta = one$beta, ci_lb = one$ci_lb, ci_ub = one$ci_ub,
         crossed = one$crossed)
  })
}

#' @export
print.tributary_monitoring <- function(x, ...) {
  wrapped(x$document$title)
  shown <- do.call(rbind, lapply(x$document$rows, unlist))
  print(stats::setNames(as.data.frame(shown), unlist(x$document$heads)), row.names = FALSE, right = TRUE)
  wrapped(x$document$sentence)
  for (wave in names(x$document$missing)) wrapped(paste0("wave ", wave, ": ", x$document$missing[[wave]]), "left out  ")
  for (one in x$document$notes) wrapped(one, "note  ")
  invisible(x)
}

answered <- function(document, study = NULL) {
  kinds <- c(if (!is.null(document$harmonised)) "tributary_harmonised", "tributary_answer")
  structure(list(document = document, study = study), class = kinds)
}

#' An answer that was given before, and what it rests on
#'
#' @param study From [study()].
#' @param id The id of a result, as an answer prints it.
#' @param answer From [ask()] or `result()`.
#' @return `result()` gives the answer. `explain()` gives a `tributary_explanation`: `releases` (a data frame of the
#'   releases, with their receipts' hashes), `stale` (why the same question has other releases behind it today; empty
#'   where it has not), `plan`, `code` (versions) and `asked_by`.
#' @export
result <- function(study, id) answered(of_study(study, "GET", "results", id)$answer, study)

#' @rdname result
#' @export
explain <- function(answer) {
  said <- of_study(answer$study, "GET", "results", answer$document$result)
  rows <- frame(said$releases, function(one) {
    list(site = one$site, wave = one$wave, n = one$n, bundle = one$bundle_sha256, receipt = one$receipt_hash,
         log_index = one$log_index)
  })
  structure(list(answer = answered(said$answer, answer$study), stale = unlist(said$stale), releases = rows,
                 plan = said$answer$provenance$plan, code = unlist(said$answer$provenance$code),
                 asked_by = frame(said$asked_by, function(one) one[c("analyst", "day", "label")])),
            class = "tributary_explanation")
}

#' @export
print.tributary_explanation <- function(x, ...) {
  for (why in x$stale) cat("stale: ", plain(why), "\n", sep = "")
  print(x$answer)
  cat("plan version ", x$plan$version, ", ", x$plan$hash, "\n", sep = "")
  cat(paste(names(x$code), x$code, collapse = ", "), "\n", sep = "")
  short <- x$releases
  short[c("bundle", "receipt")] <- lapply(short[c("bundle", "receipt")], substr, 1, 16)
  print(short, row.names = FALSE)
  print(x$asked_by, row.names = FALSE)
  invisible(x)
}
