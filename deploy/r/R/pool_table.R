MEASURES <- list(OR = c("log", "Odds ratio"), RR = c("log", "Risk ratio"), RD = c("identity", "Risk difference"))
UNLIKE <- "its scale is beyond any that the other rows have: check its unit"

#' Pool a table of one's own
#'
#' As `analyst pool` does it, without a server: by metafor, REML with the ad hoc Knapp-Hartung interval, and the fixed
#' effect beside it. A row that cannot be used is left out with its reason.
#'
#' @param data A data frame with one row per study, or a .csv file (semicolons and decimal commas are read as such).
#' @param yi,vi,sei Names of the columns of estimates (logarithms for ratios) and of their variances, or of their
#'   standard errors.
#' @param cells Names of four columns of counts instead: events and none, then the same in the second group. A table
#'   with a zero has one half added to each of its cells.
#' @param measure Of counts: `"OR"`, `"RR"` or `"RD"`.
#' @param labels Name of the column that names the rows; the first column of words that tells them apart when blank.
#' @param exp The estimates are logarithms of ratios; a column `scale` of the table says so too.
#' @param effect What the estimates are called; a column `effect` of the table says so too.
#' @param method,test,level As of [metafor::rma()], with `level` in (0, 1).
#' @return A `tributary_pool`: `random` and `fixed` (objects of class `rma`; alike for one row), `excluded` (a data
#'   frame of labels and reasons), `scale`, `effect`, `level` and `notes`. It has methods of [tidy()], [glance()],
#'   [forest()] and `plot()`.
#' @examples
#' mine <- data.frame(study = c("A", "B", "C", "D"), yi = c(0.10, 0.30, 0.35, 0.65), vi = c(0.03, 0.03, 0.05, 0.01))
#' if (requireNamespace("metafor", quietly = TRUE)) pool_table(mine, exp = TRUE)
#' @export
pool_table <- function(data, yi = "yi", vi = "vi", sei = "", cells = NULL, measure = "OR", labels = "", exp = FALSE,
                       effect = "", method = "REML", test = "adhoc", level = 0.95) {
  need_metafor()
  if (is_text(data)) data <- read_own(data)
  if (!is.data.frame(data) || !nrow(data)) refuse("the table must have at least one row", given = class(data)[1])
  if (!is.numeric(level) || level < 0.5 || level >= 1) {
    refuse("level must be in [0.5, 1)", given = format(level), next_step = "A 95 % interval is 0.95.")
  }
  names <- row_labels(data, labels)
  notes <- character()
  if (is.null(cells)) {
    estimates <- numbers(data, yi)
    variances <- if (nzchar(sei)) numbers(data, sei)^2 else numbers(data, vi)
    said <- vapply(c("scale", "effect"), function(name) one_value(data, name), "")
    scale <- if (exp) "log" else if (said[["scale"]] %in% names(BACK)) said[["scale"]] else "identity"
    effect <- c(effect, said[["effect"]], if (scale == "log") "Ratio" else "Estimate")
    effect <- effect[nzchar(effect)][1]
  } else {
    made <- sizes(data, cells, measure)
    estimates <- made$yi
    variances <- made$vi
    scale <- MEASURES[[measure]][1]
    if (!nzchar(effect)) effect <- MEASURES[[measure]][2]
    if (made$raised) notes <- paste0("0.5 added to each cell of ", made$raised, " table", if (made$raised > 1) "s", " with a zero.")
  }
  reasons <- mapply(reason_out, estimates, variances)
  reasons <- unlike(estimates, variances, reasons)
  keep <- reasons == ""
  excluded <- data.frame(label = names[!keep], reason = reasons[!keep])
  if (!any(keep)) {
    refuse("at least one row must have a usable estimate", code = "E_ESTIMATE",
           given = paste0(excluded$label, ": ", excluded$reason, collapse = "; "))
  }
  k <- sum(keep)
  if (k == 1) notes <- c(notes, paste0("Only ", names[keep], " has an estimate: nothing was pooled, this is its own result."))
  if (k == 2) notes <- c(notes, "Two studies cannot tell how studies vary: read fixed and random effects side by side.")
  mapped <- if (yi == "yi_harmonised") "_harmonised" else ""
  alike <- intersect(c(paste0("vi_common", mapped), if (nzchar(mapped)) "vi_common_map"), colnames(data))
  alike <- alike[vapply(alike, function(name) any(numbers(data, name)[keep] > 0, na.rm = TRUE), NA)]
  if (length(alike)) {
    columns <- paste0("(the column", if (length(alike) > 1) "s", " ", paste(alike, collapse = " and "), ")")
    notes <- c(notes, paste("What all sites may be off by alike", columns, "is in no interval here: `analyst pool` counts it."))
  }
  cautions <- paste0("cautions", mapped)
  if (cautions %in% colnames(data)) {
    said <- data[[cautions]][keep]
    notes <- c(notes, unique(unlist(strsplit(as.character(said[!is.na(said)]), "\n", fixed = TRUE))))
  }
  fit <- function(method, test) pooled_by_metafor(estimates[keep], variances[keep], names[keep], method, test, level)
  structure(list(random = fit(method, test), fixed = fit("FE", "z"), excluded = excluded, scale = scale,
                 effect = effect, level = level, notes = notes), class = "tributary_pool")
}

read_own <- function(file) {
  if (!grepl("[.]csv$", tolower(file)) || !file.exists(file)) {
    refuse("the table must be a data frame or a .csv file that exists", given = shown_text(basename(file)), code = "E_DATA_FILE")
  }
  first <- readLines(file, n = 1, warn = FALSE)
  apart <- grepl(";", first, fixed = TRUE)
  utils::read.csv(file, sep = if (apart) ";" else ",", dec = if (apart) "," else ".", check.names = FALSE,
                  fileEncoding = "UTF-8-BOM")
}

numbers <- function(data, name) {
  if (!is_text(name) || !name %in% names(data)) {
    refuse("the table must have the column", given = shown_text(name),
           next_step = paste0("Columns: ", paste(names(data), collapse = ", "), "."))
  }
  suppressWarnings(as.numeric(as.character(data[[name]])))
}

one_value <- function(data, name) {
  values <- if (name %in% names(data)) unique(stats::na.omit(as.character(data[[name]]))) else character()
  if (length(values) == 1) values else ""
}

row_labels <- function(data, labels) {
  if (!nzchar(labels)) {
    words <- names(data)[!vapply(data, is.numeric, NA)]
    words <- setdiff(words, c("scale", "effect", "term"))
    apart <- words[vapply(data[words], function(column) !anyDuplicated(column), NA)]
    labels <- c(apart, setdiff(words, "study"), words)[1]
  }
  if (is.na(labels)) return(paste("study", seq_len(nrow(data))))
  if (!labels %in% names(data)) refuse("the table must have the column", given = shown_text(labels))
  found <- as.character(data[[labels]])
  again <- stats::ave(seq_along(found), found, FUN = seq_along)
  ifelse(again == 1, found, paste0(found, " (", again, ")"))
}

sizes <- function(data, cells, measure) {
  if (!measure %in% names(MEASURES)) refuse("measure must be one of OR, RR, RD", given = shown_text(measure))
  if (length(cells) != 4) refuse("cells must name four columns", given = as.character(length(cells)))
  counts <- lapply(cells, function(name) numbers(data, name))
  made <- suppressWarnings(metafor::escalc(measure, ai = counts[[1]], bi = counts[[2]], ci = counts[[3]],
                                           di = counts[[4]], add = 0.5, to = "only0"))
  list(yi = as.numeric(made$yi), vi = as.numeric(made$vi), raised = sum(Reduce(`|`, lapply(counts, function(n) n == 0)), na.rm = TRUE))
}

# Why a row cannot be pooled; blank where it can. The coordinator's own bounds.
reason_out <- function(y, v) {
  if (is.na(y)) return("the estimate is missing")
  if (is.infinite(y)) return("no finite estimate at this site")
  if (is.na(v) || is.infinite(v)) return("the variance is missing or infinite")
  if (v <= 0) return(if (v < 0) "the variance is negative" else "the variance is zero")
  if (abs(y) > 1e50 || v < 1e-100 || v > 1e100) return("the estimate or its variance is beyond any effect measure")
  if (sqrt(v) <= 8 * .Machine$double.eps * abs(y)) return("the standard error is below the rounding error of the estimate")
  ""
}

# Rows of another order of magnitude than the median of all.
unlike <- function(y, v, reasons) {
  good <- which(reasons == "")
  if (length(good) < 2) return(reasons)
  se <- sqrt(v[good])
  middle <- (length(good) - 1) %/% 2 + 1
  usual <- sort(se)[middle]
  if (max(se) <= 1e8 * min(se) && max(abs(y[good])) <= 1e12 / 2 * min(se)) return(reasons)
  off <- se > 1e8 * usual | se * 1e8 < usual | abs(y[good] - sort(y[good])[middle]) > 1e12 * usual
  reasons[good[off]] <- UNLIKE
  reasons
}

#' @export
print.tributary_pool <- function(x, ...) {
  back <- BACK[[x$scale]]
  percent <- paste(format(100 * x$level), "% CI")
  for (one in x$notes) wrapped(one, "caution  ")
  fit <- x$random
  se <- sqrt(fit$vi)
  half <- stats::qnorm((1 + x$level) / 2)
  y <- as.numeric(fit$yi)
  rows <- data.frame(study = plain(as.character(fit$slab)), effect = number(back(y)),
                     ci = paste(number(back(y - half * se)), "to", number(back(y + half * se))),
                     weight = sprintf("%.1f", stats::weights(fit)))
  names(rows)[2:4] <- c(tolower(x$effect), percent, "weight %")
  print(rows, row.names = FALSE)
  said <- function(name, fit) {
    wrapped(paste0(name, " ", tolower(x$effect), " ", number(back(fit$beta[[1]])), " (", percent, " ", number(back(fit$ci.lb)), " to ",
                   number(back(fit$ci.ub)), ", p ", p_shown(fit$pval), ")"))
  }
  said(if (fit$k > 1) "fixed effect:" else "not pooled:", x$fixed)
  if (fit$k > 1) {
    said(paste0("random effects (", fit$method, ", ", fit$test, "):"), fit)
    on <- if (nzchar(SCALES[[x$scale]])) paste0(" (on the ", SCALES[[x$scale]], " scale)") else ""
    wrapped(paste0("between studies", on, ": tau\u00b2 ", number(fit$tau2), "   Q ", sprintf("%.2f", fit$QE), " on ", fit$k - 1,
                   " df, p ", p_shown(fit$QEp), "   I\u00b2 ", sprintf("%.0f", fit$I2), " %"))
  }
  for (i in seq_len(nrow(x$excluded))) wrapped(paste0(x$excluded$label[i], ": ", x$excluded$reason[i]), "left out  ")
  invisible(x)
}

#' @rdname tidy.tributary_answer
#' @method tidy tributary_pool
#' @export
tidy.tributary_pool <- function(x, conf.int = TRUE, exponentiate = FALSE, ...) {
  fits <- list(fixed = x$fixed, random = x$random)[if (x$random$k > 1) 1:2 else 1]
  made <- do.call(rbind, lapply(names(fits), function(name) {
    fit <- fits[[name]]
    data.frame(term = name, type = "summary", estimate = fit$beta[[1]], std.error = fit$se, statistic = fit$zval,
               p.value = fit$pval, conf.low = fit$ci.lb, conf.high = fit$ci.ub, nobs = fit$k, effect = x$effect,
               scale = x$scale)
  }))
  if (exponentiate) {
    made[c("estimate", "conf.low", "conf.high")] <- lapply(made[c("estimate", "conf.low", "conf.high")], BACK[[x$scale]])
    made$scale <- "identity"
  }
  if (!conf.int) made[c("conf.low", "conf.high")] <- NULL
  made
}

#' @rdname tidy.tributary_answer
#' @method glance tributary_pool
#' @export
glance.tributary_pool <- function(x, ...) {
  fit <- x$random
  data.frame(i.squared = fit$I2, h.squared = fit$H2, tau.squared = fit$tau2, tau.squared.se = fit$se.tau2,
             cochran.qe = fit$QE, p.value.cochran.qe = fit$QEp, df.residual = fit$k - 1L, nobs = fit$k,
             method = fit$method, test = fit$test, conf.level = x$level, effect = x$effect, scale = x$scale)
}

#' @rdname figure
#' @rawNamespace S3method(metafor::forest,tributary_pool)
#' @export
forest.tributary_pool <- function(x, ...) drawn(x$random, x$scale, x$effect, "", ...)

#' @rdname figure
#' @export
plot.tributary_pool <- function(x, ...) forest.tributary_pool(x, ...)
