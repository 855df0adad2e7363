# A refusal as an R condition: what must hold, what was given, and what to do next.

refusal <- function(must_hold, given = "", next_step = "", code = "E_PARAMETER", status = NULL, detail = "") {
  said <- paste0(must_hold, if (nzchar(given)) paste0(", got ", given), ".",
                 if (nzchar(next_step)) paste0(" ", next_step))
  structure(
    class = c(paste0("tributary_", code), "tributary_refusal", "error", "condition"),
    list(message = plain(if (nzchar(detail)) detail else said), call = NULL, code = code, must_hold = must_hold,
         given = given, next_step = next_step, status = status)
  )
}

refuse <- function(...) stop(refusal(...))

# What others wrote is only text: no control character of it reaches a terminal.
plain <- function(text) gsub("[[:cntrl:]]", "?", text)

# The refusal that a problem document (RFC 9457) is.
problem <- function(said, status) {
  field <- function(name) if (is.character(said[[name]])) said[[name]] else ""
  code <- field("code")
  refusal(field("must"), field("given"), field("next_step"), code = if (nzchar(code)) code else "E_NETWORK",
          status = status, detail = field("detail"))
}

need_metafor <- function() {
  if (!requireNamespace("metafor", quietly = TRUE)) {
    refuse("metafor must be installed", given = "no such package", next_step = "install.packages(\"metafor\")",
           code = "E_USAGE")
  }
}
