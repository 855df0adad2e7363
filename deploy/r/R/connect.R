PATIENCE <- 330 # seconds: a little more than the coordinator gives a question

#' Connect to a coordinator
#'
#' Every later call goes over this connection; none of them reaches a hospital.
#'
#' @param url Address of the coordinator's HTTPS interface, as in `"https://hub.example.org:8445"`.
#' @param token The token's file, as `coordinator analyst add` wrote it, or the token itself.
#'   By default the file that the variable `TRIBUTARY_ANALYST_TOKEN` names.
#' @param ca The authority that is believed: a PEM file, or its text. By default the one in the token's file;
#'   without such a file, or with `"system"`, those that this computer believes.
#' @return A `tributary_connection`; printed, it shows the studies of the token.
#' @section Refusals:
#' Whatever is refused, here or by the coordinator, is an R condition of class `tributary_refusal` with the fields
#' `must_hold`, `given`, `next_step`, `code` and `status` (of HTTP; `NULL` where this computer refused), and of a
#' class of its own for each code, as `tributary_E_PARAMETER`.
#' @examples
#' \dontrun{
#' hub <- connect("https://hub.example.org:8445", "ada.token.json")
#' studies(hub)
#' }
#' # A refusal is caught by its class:
#' tryCatch(connect("http://hub.example.org", "secret"), tributary_refusal = function(e) e$must_hold)
#' @export
connect <- function(url, token = Sys.getenv("TRIBUTARY_ANALYST_TOKEN"), ca = NULL) {
  if (!is_text(url) || !grepl("^https://[^/]", url)) {
    refuse("the address must begin with https://", given = shown_text(url),
           next_step = "Take the address of [web] that the study lead gave you.")
  }
  if (!is_text(token) || !nzchar(token)) {
    refuse("a token must be given", given = "none", code = "E_ACCESS",
           next_step = "Name the file that coordinator analyst add wrote, or set TRIBUTARY_ANALYST_TOKEN.")
  }
  held <- read_token(token)
  if (is.null(ca)) ca <- held$ca_pem
  call <- caller(sub("/+$", "", url), held$token, authority(ca))
  said <- call("GET", "studies")
  structure(list(url = url, analyst = said$analyst, role = said$role, call = call), class = "tributary_connection")
}

#' Sign in by the hospital's own provider
#'
#' For whoever has an account there and no token's file: the person opens an address in any browser, signs in, and
#' this session goes on by itself. It ends after twelve hours, and within minutes once the account is closed.
#'
#' @param url Address of the coordinator's HTTPS interface.
#' @param ca As in [connect()]: a PEM file, or its text; by default the authorities that this computer believes.
#' @param say A function that is given what the person is to do.
#' @return A `tributary_connection`, as [connect()] gives it.
#' @examples
#' \dontrun{
#' hub <- sign_in("https://hub.example.org:8445")
#' }
#' @export
sign_in <- function(url, ca = NULL, say = message) {
  if (!is_text(url) || !grepl("^https://[^/]", url)) {
    refuse("the address must begin with https://", given = shown_text(url),
           next_step = "Take the address of [web] that the study lead gave you.")
  }
  call <- caller(sub("/+$", "", url), "none", authority(ca))
  begun <- call("POST", "sign-in", body = structure(list(), names = character()))
  where <- if (nzchar(begun$verification_uri_complete)) begun$verification_uri_complete else begun$verification_uri
  say(paste0("Open ", plain(where), " and sign in there. The code is ", plain(begun$user_code), "."))
  ends <- Sys.time() + begun$expires_in
  while (Sys.time() < ends) {
    said <- call("POST", "sign-in", "ask", body = list(sign_in = begun$sign_in))
    if (!is.null(said$token)) return(connect(url, said$token, if (is.null(ca)) "system" else ca))
    Sys.sleep(begun$interval)
  }
  refuse("the person must sign in in time", given = "nobody", code = "E_ACCESS", next_step = "Begin again.")
}

# The secret and the authority of a token's file; a text that names no file is the secret itself.
read_token <- function(token) {
  if (!file.exists(token)) {
    if (grepl("[.]json$|/", token)) {
      refuse("the token's file must exist", given = token, code = "E_DATA_FILE",
             next_step = "The study lead makes it (coordinator analyst add).")
    }
    return(list(token = token))
  }
  held <- tryCatch(jsonlite::read_json(token), error = function(e) NULL)
  if (!is_text(held$token)) {
    refuse("a token's file must be as coordinator analyst add wrote it", code = "E_ACCESS",
           given = paste0(basename(token), ": another file"))
  }
  held
}

# A PEM file for curl; NULL for the computer's own authorities.
authority <- function(ca) {
  if (is.null(ca) || identical(ca, "system")) return(NULL)
  if (!is_text(ca)) refuse("ca must be a PEM file, or its text", given = shown_text(ca))
  if (!grepl("-----BEGIN CERTIFICATE-----", ca, fixed = TRUE)) {
    if (!file.exists(ca)) refuse("the authority's file must exist", given = ca, code = "E_DATA_FILE")
    return(normalizePath(ca))
  }
  file <- tempfile("tributary-ca-", fileext = ".pem")
  writeLines(ca, file)
  file
}

# Does calls: a function of a verb, parts of a path, a query, a body, and a file that the answer is written to.
caller <- function(url, token, cainfo) {
  function(verb, ..., query = list(), body = NULL, file = NULL) {
    request <- prepared(url, token, cainfo, verb, c(...), query, body)
    response <- tryCatch(httr2::req_perform(request), error = function(e) {
      why <- conditionMessage(if (is.null(e$parent)) e else e$parent)
      refuse("the coordinator must be reached", given = why, code = "E_NETWORK",
             next_step = "Check the address, the network, and ca.")
    })
    read_response(response, file)
  }
}

# A call as httr2 does it. No redirection is followed: the token is for this address alone.
prepared <- function(url, token, cainfo, verb, parts, query = list(), body = NULL) {
  parts <- vapply(c("v1", parts), utils::URLencode, "", reserved = TRUE)
  request <- httr2::request(paste(c(url, parts), collapse = "/"))
  request <- httr2::req_url_query(request, !!!query)
  request <- httr2::req_method(request, verb)
  request <- httr2::req_auth_bearer_token(request, token)
  request <- httr2::req_user_agent(request, "tributarymeta for R")
  request <- httr2::req_timeout(request, PATIENCE)
  request <- httr2::req_options(request, followlocation = FALSE)
  request <- httr2::req_error(request, is_error = function(response) FALSE)
  if (!is.null(cainfo)) request <- httr2::req_options(request, cainfo = cainfo)
  if (!is.null(body)) request <- httr2::req_body_raw(request, to_json(body), type = "application/json")
  request
}

read_response <- function(response, file = NULL) {
  status <- httr2::resp_status(response)
  if (status >= 200 && status < 300 && !is.null(file)) {
    writeBin(httr2::resp_body_raw(response), file)
    return(file)
  }
  said <- tryCatch(from_json(httr2::resp_body_string(response)), error = function(e) NULL)
  if (status < 200 || status >= 300 || !is.list(said)) {
    if (is.null(said$code)) {
      refuse("a coordinator must answer here", given = paste("HTTP", status), code = "E_NETWORK", status = status,
             next_step = "Check the address.")
    }
    stop(problem(said, status))
  }
  said
}

to_json <- function(value) jsonlite::toJSON(value, auto_unbox = TRUE, digits = NA, null = "null")

from_json <- function(text) jsonlite::parse_json(text, simplifyVector = FALSE)

is_text <- function(value) is.character(value) && length(value) == 1 && !is.na(value)

shown_text <- function(value) if (is_text(value)) dQuote(value, FALSE) else class(value)[1]

#' The studies of a token, and what is in one
#'
#' @param connection From [connect()].
#' @param name The study.
#' @param study From `study()`.
#' @param column One column of the dictionary; all when blank.
#' @param site,wave Releases of this site or wave alone; of all when blank or 0.
#' @param most The newest so many releases; all when 0.
#' @return `study()` gives the study, of which questions are asked ([ask()]); the others give data frames:
#'   `studies()` with a row per study, `dictionary()` with a row per column (meaning, unit, values, the largest
#'   share of missing values at a site, sites that lack it), `releases()` with a row per release, `questions()` with
#'   the record of all that was asked of the study, by anyone, answered or refused.
#' @examples
#' \dontrun{
#' cvd <- study(connect("https://hub.example.org:8445", "ada.token.json"), "cvd")
#' dictionary(cvd, "sbp")
#' }
#' @export
studies <- function(connection) {
  frame(connection$call("GET", "studies")$studies, function(one) {
    rows <- vapply(one$sites, persons, 0, returning = one$returning)
    list(study = one$study, title = one$title, sites = length(one$sites),
         waves = paste(unlist(one$delivered), collapse = ", "), n = sum(rows), posture = one$posture,
         last_release = text_or(one$last_day))
  }, empty = c("study", "title", "sites", "waves", "n", "posture", "last_release"))
}

# Released rows of a site's newest wave; under append of all its waves, which are different persons.
persons <- function(site, returning) {
  counts <- unlist(site$n)
  if (identical(returning, "append")) sum(counts) else counts[[which.max(as.integer(names(counts)))]]
}

#' @rdname studies
#' @export
study <- function(connection, name) {
  known <- studies(connection)$study
  if (!name %in% known) {
    near <- agrep(name, known, max.distance = 2, value = TRUE)
    refuse("the study must be one that the token is for", given = shown_text(name), code = "E_ACCESS",
           next_step = if (length(near)) paste0("Did you mean \"", near[1], "\"?")
           else paste0("Yours: ", paste(known, collapse = ", "), "."))
  }
  structure(list(connection = connection, name = name), class = "tributary_study")
}

#' @rdname studies
#' @export
dictionary <- function(study, column = "") {
  said <- of_study(study, "GET", "dictionary", query = if (nzchar(column)) list(column = column) else list())
  frame(said$columns, function(one) {
    span <- if (is.null(one$lower)) paste(unlist(one$levels), collapse = ", ")
    else paste(format(one$lower, digits = 15), "to", format(one$upper, digits = 15))
    list(column = one$name, meaning = one$label, kind = one$kind, unit = one$unit, values = span,
         missing_at_most = max(0, unlist(one$missing_share)), not_at = paste(unlist(one$lacking), collapse = ", "))
  })
}

#' @rdname studies
#' @export
releases <- function(study, site = "", wave = 0, most = 0) {
  found <- list()
  after <- NULL
  repeat {
    size <- if (most > 0) min(most - length(found), releases_page) else releases_page
    asked <- list(most = size, after = after, newest = if (most > 0) "true", site = if (nzchar(site)) site,
                  wave = if (wave > 0) wave)
    page <- of_study(study, "GET", "releases", query = Filter(Negate(is.null), asked))
    found <- c(found, page$releases)
    after <- page$more
    if (is.null(after) || (most > 0 && length(found) >= most)) break
  }
  by <- order(vapply(found, function(one) one$wave, 0), vapply(found, function(one) one$site, ""), method = "radix")
  frame(found[by], function(one) {
    list(wave = one$wave, site = one$site, n = one$n, release_id = one$release_id,
         epsilon = if (is.null(one$epsilon)) NA_real_ else one$epsilon, given = text_or(one$epsilon_given),
         day = one$accepted_day, withdrawn = one$withdrawn)
  }, empty = c("wave", "site", "n", "release_id", "epsilon", "given", "day", "withdrawn"))
}

#' @rdname studies
#' @export
questions <- function(study) {
  lines <- list()
  after <- 0
  while (!is.null(after)) {
    page <- of_study(study, "GET", "log", query = list(after = after))
    lines <- c(lines, page$lines)
    after <- page[["next"]]
  }
  frame(lines, function(one) {
    asked <- one$question
    what <- if (nzchar(one$planned)) one$planned else text_or(asked$estimand)
    if (one$kind == "refused") what <- trimws(paste(text_or(asked$kind), text_or(asked$formula)))
    list(number = one$number, day = one$day, analyst = one$analyst, label = one$label, question = plain(what),
         state = if (one$kind == "refused") paste("refused:", one$subject) else if (one$stale) "stale" else "")
  }, empty = c("number", "day", "analyst", "label", "question", "state"))
}

of_study <- function(study, verb, ...) {
  if (!inherits(study, "tributary_study")) {
    refuse("the study must come from study(connection, name)", given = class(study)[1])
  }
  study$connection$call(verb, "studies", study$name, ...)
}

releases_page <- 200 # releases that one call asks for

text_or <- function(value, other = "") if (is.null(value)) other else value

frame <- function(rows, make, empty = character()) {
  if (!length(rows)) return(as.data.frame(stats::setNames(rep(list(character()), length(empty)), empty)))
  made <- lapply(rows, function(row) as.data.frame(make(row), stringsAsFactors = FALSE))
  do.call(rbind, made)
}

#' @export
print.tributary_connection <- function(x, ...) {
  cat(plain(x$analyst), ", ", x$role, ", at ", x$url, "\n", sep = "")
  print(studies(x), row.names = FALSE)
  invisible(x)
}

#' @export
print.tributary_study <- function(x, ...) {
  all <- x$connection$call("GET", "studies")$studies
  one <- Filter(function(found) found$study == x$name, all)[[1]]
  cat(plain(one$study), ": ", plain(one$title), "\n", sep = "")
  cat("plan version ", one$version, ", posture ", one$posture, ". ", one$note, "\n", sep = "")
  rows <- lapply(names(one$sites), function(site) {
    found <- one$sites[[site]]
    list(site = site, waves = paste(unlist(found$waves), collapse = ", "), n = persons(found, one$returning))
  })
  print(frame(rows, identity), row.names = FALSE)
  for (name in names(one$estimands)) cat("planned  ", plain(name), ": ", plain(one$estimands[[name]]), "\n", sep = "")
  invisible(x)
}
