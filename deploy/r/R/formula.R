# R formulas in the coordinator's grammar of questions (docs/estimands.md). Nothing of a formula is run: columns live at
# the coordinator. What R and the grammar read differently is refused here; the rest the coordinator reads itself.

BINDING <- c("~" = 1, "|" = 2, "&" = 3, "!" = 4, "==" = 5, "!=" = 5, ">=" = 5, "<=" = 5, ">" = 5, "<" = 5,
             "+" = 6, "-" = 6, "*" = 7, "/" = 7, ":" = 8, "^" = 10)
SIGN <- 9
ATOM <- 11
OTHER_NAMES <- c(as.factor = "factor")
GRAMMAR <- "See docs/estimands.md."

# A formula, or a text that is the question already, as text.
question_text <- function(formula, what = "the question") {
  if (is_text(formula)) return(formula)
  if (!inherits(formula, "formula")) {
    refuse(paste(what, "must be a formula or a text"), given = class(formula)[1],
           next_step = "Write for example: Surv(time, died) ~ age + factor(arm).")
  }
  if (length(formula) == 2) return(paste("~", spelled(formula[[2]]))) # an outcome or columns: no term of a model
  paste(spelled(formula[[2]]), "~", spelled(formula[[3]], term = TRUE))
}

# A filter or a column: a text, or what stands in a one-sided formula.
option_text <- function(value, name) {
  if (inherits(value, "formula")) {
    if (length(value) != 2) refuse(paste(name, "must have nothing before ~"), given = deparse1(value))
    return(spelled(value[[2]]))
  }
  if (is.numeric(value) && length(value) == 1) return(sub("^-", "-", number_text(abs(value), value)))
  if (!is_text(value)) {
    refuse(paste(name, "must be one number, a text or a one-sided formula"), given = class(value)[1],
           next_step = "Write for example: subset = ~ age >= 60 & sex == \"female\".")
  }
  value
}

# An expression as text. `term`: it stands among the terms of a model, where signs do not mean arithmetic.
spelled <- function(e, term = FALSE) spell(e, term)$text

spell <- function(e, term) {
  if (is.symbol(e)) return(atom(column_name(as.character(e))))
  if (is.character(e)) return(atom(quoted(e)))
  if (is.logical(e) && !is.na(e)) return(atom(as.character(as.integer(e))))
  if (is.numeric(e)) return(atom(number_text(e)))
  if (!is.call(e)) refuse("a question must be made of columns, numbers and texts", given = deparse1(e))
  head <- e[[1]]
  if (is.call(head) && as.character(head[[1]]) %in% c("::", ":::")) head <- head[[3]]
  if (!is.symbol(head)) refuse("a function must be given by its name", given = deparse1(head))
  name <- as.character(head)
  arguments <- as.list(e)[-1]
  if (name == "(") return(atom(paste0("(", spelled(arguments[[1]], term), ")")))
  if (name == "%in%") return(among(arguments, e))
  forbid(name, arguments, term, e)
  if (name %in% names(BINDING)) return(operation(name, arguments, term))
  called(name, arguments)
}

atom <- function(text) list(text = text, binding = ATOM)

forbid <- function(name, arguments, term, e) {
  say <- function(must, step) refuse(must, given = dQuote(deparse1(e), FALSE), next_step = step)
  if (name %in% c("$", "[", "[[", "@")) say("a column must be named alone", "Write the column's name: no data frame is here.")
  if (name %in% c("&&", "||")) say("rows are asked by & and |", "Write & or |.")
  if (startsWith(name, "%") || name %in% c("function", "{", "<-", "=", "?")) {
    say("a question must be within its grammar", GRAMMAR)
  }
  if (!term) return(invisible())
  if (name == "|") say("a model must have no random effects", "Each site answers by itself; sites are pooled with random effects.")
  if (name == "/" && !is.numeric(arguments[[2]])) say("a term must not be nested", "Write a + a:b for R's a/b; sbp/10 is sbp in units of ten.")
  if (name == "^") say("a term must be crossed with *", "Write a*b for (a + b)^2, I(a^2) for a square.")
}

operation <- function(name, arguments, term) {
  if (length(arguments) == 1) {
    level <- if (name == "!") BINDING[["!"]] else SIGN
    return(list(text = paste0(name, bracketed(spell(arguments[[1]], term), level)), binding = level))
  }
  level <- BINDING[[name]]
  # a ^ b ^ c groups to the right, the others to the left; comparisons do not chain.
  left <- bracketed(spell(arguments[[1]], term), level + (name == "^") + (level == 5))
  right <- bracketed(spell(arguments[[2]], term), level + (name != "^"))
  between <- if (name %in% c("/", ":", "^")) name else paste0(" ", name, " ")
  list(text = paste0(left, between, right), binding = level)
}

bracketed <- function(part, level) if (part$binding >= level) part$text else paste0("(", part$text, ")")

# Names of arguments that R users give to Surv() and the like; the grammar takes these by their place.
called <- function(name, arguments) {
  if (name == "Surv" && !length(arguments) %in% 2:3) {
    refuse("Surv must have a time and an event", given = paste(length(arguments), "arguments"),
           next_step = "Write Surv(time, event), or Surv(entry, time, event); a window is start= and stop=.")
  }
  keys <- names(arguments)
  if (name == "Surv" && length(arguments) == 3 && !is.null(keys)) {
    refuse("Surv(entry, time, event) must have its arguments without names", given = paste(keys, collapse = ", "),
           next_step = "Write them by their place: Surv(entry, time, event).")
  }
  if (name == "Surv" && !is.null(keys)) {
    order <- match(keys, c("time", "event"))
    if (all(is.na(order) == (keys == ""))) {
      free <- setdiff(1:2, order)
      order[is.na(order)] <- free
      arguments <- unname(arguments)[order(order)]
      keys <- NULL
    }
  }
  inside <- vapply(arguments, spelled, "")
  if (!is.null(keys)) inside <- ifelse(nzchar(keys), paste(keys, "=", inside), inside)
  name <- if (name %in% names(OTHER_NAMES)) OTHER_NAMES[[name]] else name
  atom(paste0(name, "(", paste(inside, collapse = ", "), ")"))
}

# x %in% c("a", "b") as comparisons.
among <- function(arguments, e) {
  values <- arguments[[2]]
  values <- if (is.call(values) && identical(values[[1]], quote(c))) as.list(values)[-1] else list(values)
  if (!length(values) || !all(vapply(values, function(one) is.character(one) || is.numeric(one), NA))) {
    refuse("%in% must be followed by texts or numbers", given = dQuote(deparse1(e), FALSE),
           next_step = "Write for example: arm %in% c(\"low\", \"high\").")
  }
  column <- spelled(arguments[[1]])
  atom(paste0("(", paste(column, "==", vapply(values, spelled, ""), collapse = " | "), ")"))
}

# A column has a plain name; the dots that R users write stand for its underscores.
column_name <- function(name) {
  if (name == ".") {
    refuse("the terms must be named", given = "a dot", next_step = "dictionary(study) lists the columns.")
  }
  plain_name <- gsub(".", "_", name, fixed = TRUE)
  if (!grepl("^[[:alpha:]_][[:alnum:]_]*$", plain_name)) {
    refuse("a column must be a plain word", given = dQuote(name, FALSE), next_step = "dictionary(study) lists the columns.")
  }
  plain_name
}

quoted <- function(text) {
  if (!is_text(text)) refuse("a level must be one text", given = deparse1(text))
  mark <- if (grepl("\"", text, fixed = TRUE)) "'" else "\""
  if (grepl(mark, text, fixed = TRUE) || grepl("[[:cntrl:]]", text)) {
    refuse("a level must be a text with one kind of quotes", given = dQuote(plain(text), FALSE))
  }
  paste0(mark, text, mark)
}

number_text <- function(value, sign = value) {
  if (length(value) != 1 || !is.finite(value)) refuse("a number must be finite", given = deparse1(value))
  text <- format(value, digits = 15, scientific = FALSE, trim = TRUE)
  if (as.numeric(text) != value) text <- format(value, digits = 17, trim = TRUE)
  paste0(if (sign < 0 && value > 0) "-", text)
}
