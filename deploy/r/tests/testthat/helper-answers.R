# Answers that a coordinator gave (python -m tests.stage.coordinator_side.doors, at the root of the repository).
recorded <- function(name) jsonlite::read_json(test_path("answers", paste0(name, ".json")))

answer <- function(name) tributarymeta:::answered(recorded(name))

# A study whose calls are kept and answered by `said`, a function of what was called.
asked_of <- function(said) {
  calls <- new.env()
  calls$made <- list()
  call <- function(verb, ..., query = list(), body = NULL, file = NULL) {
    calls$made <- c(calls$made, list(list(verb = verb, path = c(...), query = query, body = body, file = file)))
    said(c(...))
  }
  connection <- structure(list(url = "https://hub.example.org", analyst = "ada", role = "analyst", call = call),
                          class = "tributary_connection")
  list(study = structure(list(connection = connection, name = "cvd"), class = "tributary_study"), calls = calls)
}
