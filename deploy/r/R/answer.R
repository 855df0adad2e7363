# An answer: one JSON document of the coordinator, and ways of looking at it. Nothing is estimated here.

SCALES <- c(identity = "", log = "log", logit = "logit", fisher_z = "Fisher z")
BACK <- list(identity = identity, log = exp, logit = stats::plogis, fisher_z = tanh)
THERE <- list(identity = identity, log = log, logit = stats::qlogis, fisher_z = atanh)

# Four significant digits, without exponents where a reader expects none: as the coordinator's own tables.
number <- function(x) {
  vapply(x, function(one) {
    if (is.na(one)) return("")
    if (!is.finite(one)) return(if (one > 0) "Inf" else "-Inf")
    if (one == 0) return("0")
    if (abs(one) >= 1e9) return(sprintf("%.3e", one))
    if (abs(one) >= 1000) return(sprintf("%.0f", one))
    if (abs(one) < 1e-4) return(sprintf("%.4g", one))
    sub("[.]$", "", sprintf("%#.4g", one))
  }, "")
}

p_shown <- function(p) ifelse(is.na(p), "-", ifelse(p < 0.001, "< 0.001", sprintf("%.3f", p)))

value_or <- function(value, other = NA_real_) if (is.null(value)) other else value

effect_of <- function(document) {
  effect <- tolower(text_or(document$effect))
  if (nzchar(effect)) effect else if (identical(document$scale, "log")) "ratio" else "estimate"
}

error_of <- function(scale) if (nzchar(SCALES[[scale]])) paste("se of its", SCALES[[scale]]) else "se"

#' A site's estimates as a data frame
#'
#' @param x A `tributary_answer`.
#' @param ... Not used.
#' @return One row per site: `yi` and `vi` on the analysis scale (`scale`), `vi` in its parts (patients and flow,
#'   noise of the release, and as if rows were patients), `vi_common` (the variance of what every site's answer may be
#'   off by alike, in no `vi`), `n`, and the `reason` of a site that has no estimate.
#' @export
as.data.frame.tributary_answer <- function(x, ...) {
  frame(x$document$estimates, function(one) {
    vi <- value_or(one$vi_sampling) + value_or(one$vi_privacy)
    list(site = one$site, study = one$study, wave = one$wave, term = one$term, n = one$n, scale = one$scale,
         yi = value_or(one$yi), vi = vi, vi_sampling = value_or(one$vi_sampling),
         vi_privacy = value_or(one$vi_privacy), vi_naive = value_or(one$vi_naive), vi_common = value_or(one$vi_common),
         reason = one$reason, effect = text_or(x$document$effect))
  })
}

# -- printed ---------------------------------------------------------------------------------------------------
wrapped <- function(text, first = "") {
  cat(strwrap(plain(text), width = getOption("width"), prefix = strrep(" ", nchar(first)), initial = first), sep = "\n")
}

show_cautions <- function(sentences) for (one in unlist(sentences)) wrapped(one, "caution  ")

headed <- function(document) {
  wrapped(document$title)
  wrapped(document$caption)
  show_cautions(document$doubts)
}

# What an answer is: the figures of its secure sum where it has one, else those pooled from its rows.
figures_of <- function(document) if (is.null(document$summed)) document$pooled else document$summed

pooled_line <- function(document) {
  pooled <- figures_of(document)
  shown <- pooled$shown
  sites <- if (is.null(pooled$sites)) document$k else length(pooled$sites)
  paste0("pooled ", effect_of(document), " ", number(shown$estimate), " (", format(100 * document$level), " % CI ",
         number(shown$ci_lb), " to ", number(shown$ci_ub), "; ", pooled$method, ", ", pooled$test, ", ", sites, " sites)")
}

#' @export
print.tributary_answer <- function(x, ...) {
  document <- x$document
  headed(document)
  rows <- as.data.frame(x)
  shown <- data.frame(site = plain(rows$site), effect = number(BACK[[document$scale]](rows$yi)),
                      error = number(sqrt(rows$vi)), n = rows$n, why = plain(rows$reason))
  names(shown)[2:3] <- c(effect_of(document), error_of(document$scale))
  if (all(shown$why == "")) shown$why <- NULL else names(shown)[5] <- "left out because"
  print(shown, row.names = FALSE, right = TRUE)
  wrapped(pooled_line(document))
  for (one in document$cautions) wrapped(one, "note  ")
  cat("result ", document$result, "\n", sep = "")
  invisible(x)
}

#' @rdname as.data.frame.tributary_answer
#' @export
as.data.frame.tributary_harmonised <- function(x, ...) {
  rows <- NextMethod()
  mapped <- x$document$harmonised
  other <- stats::setNames(mapped$estimates, vapply(mapped$estimates, function(one) one$site, ""))
  of <- function(site, part) value_or(other[[site]][[part]])
  rows$yi_harmonised <- vapply(rows$site, of, 0, "yi", USE.NAMES = FALSE)
  parts <- vapply(c("vi_sampling", "vi_privacy"), function(part) vapply(rows$site, of, 0, part), numeric(nrow(rows)))
  rows$vi_harmonised <- ifelse(is.na(rows$yi_harmonised), NA_real_, rowSums(matrix(parts, ncol = 2)))
  rows$vi_common_harmonised <- vapply(rows$site, of, 0, "vi_common", USE.NAMES = FALSE)
  rows$vi_map <- vapply(rows$site, function(site) value_or(mapped$site_map_variance[[site]]), 0, USE.NAMES = FALSE)
  rows$vi_common_map <- rep(value_or(mapped$map_variance), nrow(rows))
  rows
}

#' @export
print.tributary_harmonised <- function(x, ...) {
  document <- x$document
  lines <- unlist(document$harmonised$lines)
  wrapped(lines[1])
  wrapped(document$caption)
  show_cautions(document$doubts)
  for (one in grep("^warning", lines, value = TRUE)) wrapped(one)
  rows <- as.data.frame(x)
  shown <- function(yi, vi) {
    ifelse(is.na(yi), "", paste0(number(BACK[[document$scale]](yi)), " (", number(sqrt(vi)), ")"))
  }
  table <- data.frame(site = plain(rows$site), "as released" = shown(rows$yi, rows$vi),
                      harmonised = shown(rows$yi_harmonised, rows$vi_harmonised),
                      "se of map" = number(sqrt(rows$vi_map)), n = rows$n, check.names = FALSE)
  print(table, row.names = FALSE, right = TRUE)
  for (one in grep("^warning", lines[-1], value = TRUE, invert = TRUE)) wrapped(one)
  cat("result ", document$result, "\n", sep = "")
  invisible(x)
}

#' @export
format.tributary_answer <- function(x, ...) pooled_line(x$document)

#' The whole answer
#'
#' Both models, heterogeneity, what a naive reader would claim, and all terms of the question.
#'
#' @param object A `tributary_answer`.
#' @param x What `summary()` gave.
#' @param ... Not used.
#' @return The answer, printed at length.
#' @export
summary.tributary_answer <- function(object, ...) structure(list(answer = object), class = "summary.tributary_answer")

#' @rdname summary.tributary_answer
#' @export
print.summary.tributary_answer <- function(x, ...) {
  document <- x$answer$document
  back <- function(ends) paste(number(ends$ci_lb), "to", number(ends$ci_ub))
  headed(document)
  rows <- frame(document$rows, function(one) {
    list(site = plain(one$label), effect = number(one$shown$estimate), ci = back(one$shown),
         weight = sprintf("%.1f", one$weight), n = one$n)
  })
  percent <- paste(format(100 * document$level), "% CI")
  names(rows)[2:4] <- c(effect_of(document), percent, "weight %")
  print(rows, row.names = FALSE)
  for (one in document$excluded) wrapped(paste0(one$label, ": ", one$reason), "left out  ")
  said <- function(name, fit) {
    wrapped(paste0(name, " ", effect_of(document), " ", number(fit$shown$estimate), " (", percent, " ", back(fit$shown),
                   if (!is.null(fit$pval)) paste0(", p ", p_shown(fit$pval)), ")"))
  }
  of <- ""
  if (!is.null(document$summed)) {
    said(paste0("secure sum, ", length(document$summed$sites), " sites:"), document$summed)
    of <- "releases, "
  }
  said(paste0(of, "fixed effect:"), document$fixed)
  if (document$k > 1) {
    said(paste0(of, "random effects (", document$pooled$method, ", ", document$pooled$test, "):"), document$pooled)
  }
  heterogeneity(document)
  if (!is.null(document$naive)) said("naive, rows taken for patients:", document$naive)
  terms <- tidy.tributary_answer(x$answer, exponentiate = TRUE)
  if (nrow(terms) > 1) {
    cat("all terms, each pooled by itself\n")
    show_cautions(setdiff(unique(terms$cautions[nzchar(terms$cautions)]), unlist(document$doubts)))
    table <- data.frame(term = terms$term, effect = tolower(terms$effect), estimate = number(terms$estimate),
                        ci = paste(number(terms$conf.low), "to", number(terms$conf.high)), p = p_shown(terms$p.value),
                        sites = terms$nobs)
    names(table)[4] <- percent
    print(table, row.names = FALSE)
    for (one in document$joint) {
      wrapped(paste0(one$term, ": ", if (nzchar(one$reason)) one$reason else one$sentence))
    }
  }
  for (one in c(setdiff(unlist(document$notes), unlist(document$doubts)), unlist(document$cautions))) wrapped(one, "note  ")
  cat("result ", document$result, "\n", sep = "")
  invisible(x)
}

heterogeneity <- function(document) {
  if (document$k < 2) return(invisible())
  pooled <- document$pooled
  on <- if (nzchar(SCALES[[document$scale]])) paste0(" (on the ", SCALES[[document$scale]], " scale)") else ""
  between <- document$tau2_interval
  ends <- if (is.null(between$lb)) "" else paste0(" (", number(between$lb), " to ", number(between$ub), ")")
  if (!is.null(document$summed)) {
    wrapped(paste0("between sites, in the variance of the secure sum: tau\u00b2 ", number(document$summed$tau2),
                   ", what is expected of it given all releases"))
  }
  whose <- if (is.null(document$summed)) "sites" else "the releases of sites"
  wrapped(paste0("between ", whose, on, ": tau\u00b2 ", number(pooled$tau2), ends, "   Q ", sprintf("%.2f", pooled$QE), " on ",
                 document$k - 1, " df, p ", p_shown(pooled$QEp), "   I\u00b2 ", sprintf("%.0f", pooled$I2), " %"))
  new <- document$prediction_interval
  back <- BACK[[document$scale]]
  wrapped(paste("prediction interval of a new site:", if (is.null(new$lb)) new$reason
                else paste(number(back(new$lb)), "to", number(back(new$ub)))))
}

# -- broom -----------------------------------------------------------------------------------------------------
#' @importFrom generics tidy
#' @export
generics::tidy

#' @importFrom generics glance
#' @export
generics::glance

#' An answer as broom's tables
#'
#' @param x A `tributary_answer`, or what [pool_table()] gave.
#' @param conf.int `FALSE` leaves out the interval, whose coverage is the answer's own level.
#' @param exponentiate `TRUE` takes estimates and intervals back from the analysis scale (the odds ratio, not its
#'   logarithm); standard errors and the test stay on it.
#' @param include_studies `TRUE` adds a row per site, as [broom](https://broom.tidymodels.org)'s `tidy()` of an `rma`.
#' @param ... Not used.
#' @return Of `tidy()`: a row per term of the question, each pooled by itself: `term`, `type`, `estimate`,
#'   `std.error`, `statistic`, `p.value`, `conf.low`, `conf.high`, `nobs` (sites), `effect` (what the estimates are),
#'   `scale` (on which `estimate` stands), `reason` and `cautions`. Of `glance()`: one row of heterogeneity, with
#'   broom's names.
#' @method tidy tributary_answer
#' @export
tidy.tributary_answer <- function(x, conf.int = TRUE, exponentiate = FALSE, include_studies = FALSE, ...) {
  document <- x$document
  scale <- document$scale
  line <- function(term, type, estimate, se, statistic, p, low, high, nobs, effect, reason = "", cautions = "") {
    data.frame(term = term, type = type, estimate = estimate, std.error = se, statistic = statistic, p.value = p,
               conf.low = low, conf.high = high, nobs = nobs, effect = effect, scale = scale, reason = reason,
               cautions = cautions)
  }
  there <- THERE[[scale]]
  terms <- lapply(document$table, function(one) {
    beta <- value_or(one$beta)
    ends <- c(there(value_or(one$ci_lb)), there(value_or(one$ci_ub)))
    statistic <- if (is.null(one$pval)) NA_real_ else beta / value_or(one$se)
    if (identical(one$term, document$term)) {
      ends <- c(figures_of(document)$ci_lb, figures_of(document)$ci_ub)
      statistic <- value_or(figures_of(document)$zval)
    }
    line(one$term, "summary", beta, value_or(one$se), statistic, value_or(one$pval), ends[1], ends[2],
         value_or(one$k, 0L), text_or(one$effect), one$reason, paste(unlist(one$cautions), collapse = " "))
  })
  if (include_studies) {
    half <- stats::qnorm((1 + document$level) / 2)
    sites <- lapply(split(as.data.frame(x), seq_along(document$estimates)), function(one) {
      se <- sqrt(one$vi)
      line(one$site, "study", one$yi, se, one$yi / se, 2 * stats::pnorm(-abs(one$yi / se)), one$yi - half * se,
           one$yi + half * se, one$n, one$effect, one$reason)
    })
    terms <- c(terms, unname(sites))
  }
  made <- do.call(rbind, terms)
  if (exponentiate) {
    made[c("estimate", "conf.low", "conf.high")] <- lapply(made[c("estimate", "conf.low", "conf.high")], BACK[[scale]])
    made$scale <- "identity"
  }
  if (!conf.int) made[c("conf.low", "conf.high")] <- NULL
  made
}

#' @rdname tidy.tributary_answer
#' @method glance tributary_answer
#' @export
glance.tributary_answer <- function(x, ...) {
  document <- x$document
  pooled <- document$pooled
  data.frame(i.squared = pooled$I2, h.squared = pooled$H2, tau.squared = pooled$tau2,
             tau.squared.se = value_or(document$se_tau2), cochran.qe = pooled$QE, p.value.cochran.qe = pooled$QEp,
             df.residual = document$k - 1L, nobs = document$k, method = pooled$method, test = pooled$test,
             conf.level = document$level, effect = text_or(document$effect), scale = document$scale,
             result = document$result, cautions = paste(unlist(document$doubts), collapse = " "))
}

# -- metafor ---------------------------------------------------------------------------------------------------
#' An answer as an object of metafor
#'
#' The sites' estimates are pooled again by [metafor::rma()], with the answer's method, test and level.
#'
#' @param answer A `tributary_answer`.
#' @return An object of class `rma`. Cautions are said as messages. A warning says where the answer's interval holds
#'   variance that all sites share, which no `rma` can hold: then the object's interval is narrower. Another warning
#'   says where the answer is a secure sum: the object pools what each site released by itself.
#' @section Refusals:
#' `E_INTEGRITY` where metafor pools to another estimate than the one that was sent, by more than one in a million.
#' @export
as_rma <- function(answer) {
  need_metafor()
  document <- answer$document
  for (one in unlist(document$doubts)) message("caution: ", plain(one))
  rows <- as.data.frame(answer)
  rows <- rows[!is.na(rows$yi) & rows$site %in% vapply(document$rows, function(one) one$label, ""), ]
  made <- pooled_by_metafor(rows$yi, rows$vi, rows$site, document$pooled$method, document$pooled$test, document$level)
  close <- function(a, b) abs(a - b) <= 1e-6 * abs(b) + 1e-9
  if (!close(made$beta[[1]], document$pooled$beta)) {
    refuse("metafor must pool to the number that was sent", given = "another", code = "E_INTEGRITY",
           next_step = "Use the coordinator's own number; see explain(answer).")
  }
  if (!is.null(document$summed)) {
    warning("The answer is a secure sum; this object pools what each site released by itself, which is another number.",
            call. = FALSE)
  }
  if (!isTRUE(abs(made$se - document$pooled$se) <= 1e-4 * document$pooled$se)) {
    warning("The answer's interval holds variance that all sites share; this object's does not, and is narrower.",
            call. = FALSE)
  }
  made
}

pooled_by_metafor <- function(yi, vi, slab, method, test, level) {
  # metafor stops its iterations early; the coordinator's tau2 is the converged one.
  control <- list(threshold = 1e-12, tol = .Machine$double.eps^0.5, maxiter = 10000)
  fit <- function(control) {
    metafor::rma.uni(yi = yi, vi = vi, slab = slab, method = method, test = test, level = 100 * level, control = control)
  }
  if (length(yi) == 1) return(metafor::rma.uni(yi = yi, vi = vi, slab = slab, method = "FE", level = 100 * level))
  tryCatch(fit(control), error = function(e) fit(c(control, stepadj = 0.5)))
}

#' Figures of an answer
#'
#' `figure()` saves a figure that the coordinator drew. `forest()` and `plot()` do so with a `file`, and draw the
#' forest plot by metafor on the current device without one.
#'
#' @param answer,x A `tributary_answer`; for `figure()` also what [monitor()] gave, and for `forest()` and `plot()` also what [pool_table()] gave.
#' @param file Where the figure is saved: .svg, .pdf, .png, or .csv for its numbers. It is overwritten.
#' @param kind `forest`, `leave-one-out`, `cumulative`, `funnel`, `baujat`, `influence`, or `curve` (of a `km`
#'   question); `table` with .csv.
#' @param ... Passed on to metafor's `forest()`.
#' @return The file's name, or what metafor's `forest()` gives, invisibly.
#' @export
figure <- function(answer, file, kind = "forest") {
  suffix <- tolower(tools::file_ext(file))
  if (!suffix %in% c("svg", "pdf", "png", "csv")) {
    refuse("a figure's file must end in .svg, .pdf, .png or .csv", given = shown_text(basename(file)))
  }
  study <- answer$study
  if (inherits(answer, "tributary_monitoring")) {
    of <- list(results = paste(unlist(answer$document$results), collapse = ","), spending = answer$document$spending)
    study$connection$call("GET", "studies", study$name, paste0("looks.", suffix), query = of, file = file)
    return(invisible(file))
  }
  name <- paste0(kind, ".", suffix)
  study$connection$call("GET", "studies", study$name, "results", answer$document$result, name, file = file)
  invisible(file)
}

#' @rdname figure
#' @export
forest <- function(x, ...) UseMethod("forest")

#' @export
forest.default <- function(x, ...) {
  need_metafor()
  metafor::forest(x, ...)
}

#' @rdname figure
#' @rawNamespace S3method(metafor::forest,tributary_answer)
#' @export
forest.tributary_answer <- function(x, file = NULL, kind = "forest", ...) {
  if (!is.null(file)) return(figure(x, file, kind))
  drawn(as_rma(x), x$document$scale, x$document$effect, x$document$title, ...)
}

drawn <- function(fit, scale, effect, title, ...) {
  how <- utils::modifyList(list(x = fit, header = TRUE, xlab = plain(text_or(effect))), list(...))
  if (scale == "log") how <- utils::modifyList(list(atransf = exp), how)
  else if (scale != "identity") how <- utils::modifyList(list(transf = BACK[[scale]]), how)
  made <- do.call(metafor::forest, how)
  graphics::title(paste(strwrap(plain(title), 60), collapse = "\n"), cex.main = 1)
  invisible(made)
}

#' @rdname figure
#' @export
plot.tributary_answer <- function(x, ...) forest.tributary_answer(x, ...)
