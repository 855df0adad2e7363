"""What docs/zoo.md says around its tables."""

HEAD = """# The zoo: what is true on data that nobody tuned to

Written by `python -m tests.benchmarks.zoo_page` from the files in `tests/benchmarks/results/`; each names the command
that made it. Nineteen simulated worlds and four real tables, each hard in its own way, go through the product: plan,
fit, release, estimates, pooling. Settings are chosen on one half (by the last byte of a name's digest) and reported
here on the other. What is held against the records:

* **bias**: the released pooled coefficient less that of the records, in standard errors of the records' pooled
  coefficient, averaged over draws. Noise alone makes about 0.5 of a single draw, and less of the mean of several.
* **holds the records / the law**: of released pooled 95 % intervals, the share that holds the records' own pooled
  coefficient, and the law's that the worlds are drawn from (in brackets: of the records' own intervals, the share that
  holds the law's).
* **width**: of the interval, as a multiple of the records'. **I²**: released less real, points, mean.
* **told**: how often the records' coefficient lay within the distance that an answer tells "in nine cases of ten".
* **cautioned**: answers that a caution stands by, of those whose interval does not hold the records' coefficient, and
  of those whose does. With † they were counted before the common dispersion of counts was taken out of the caution
  ([decision 35](decisions/0035-cautions-that-mean-something.md)); most of those are of counts.

With ‡ noisy moments were measured before numeric columns were read by the histograms of all hospitals together
([decision 32](decisions/0032-moments-are-read-together.md)), which mattered most below 1,000 patients a hospital.

Behind a share stands its 95 % interval by chance, as if answers were independent; coefficients of one model are not
quite. A dash is a figure that was not measured, or of which there is no case.
"""
TOGETHER = """Two types of outcome of each world, one draw. Looked at first, before numeric columns were read by the
histograms of all hospitals together ([decision 32](decisions/0032-moments-are-read-together.md)), where answers on a
measurement at 300 patients were too small and too sure. No number was chosen by what is here; that something was
missing was seen here. What is left is of the planned model: `wild counts` has a measurement whose mean is none that it
can follow, at every n.
"""
BARS = """
Of one draw noise alone makes a bias of 0.67 (median) and 1.96 (95th percentile) of an answer's own standard error, of
the mean of two 0.48 and 1.39: less than that cannot be told from none. With no wrong answer there is none that a
caution could stand by; what a caution can catch at all stands [below](#what-a-caution-can-catch). Transitivity and
triangles of GRAND's networks are refused; capped counts answer them ([networks.md](networks.md)). A planted copy is a
row of somebody who is unlike everybody else, and in tables of few coarse columns it is what a stranger's row may be
([latent noise](benchmarks/latent-noise.md)).

Not in this zoo: flows trained with noise, cross-products, and a secure sum, whose figures are of other worlds
([moments](benchmarks/moments.md)); latent noise of 20,000 patients in more than three worlds; noisy moments of 48 sites
with more than 1,000 patients; tables, densities and slicing of other n and K than theirs below, slicing in more than
four worlds. A pool is not refused where most of its sites doubt: its interval is wider, and a caution says so. No
pooled coefficient is moved by a bias that was estimated; what a release draws towards none is told and widens the
interval. Both were asked for, and [tried](#refusing-a-pool-that-most-of-its-sites-doubt).
"""

SLICING = """Six models of four worlds, ε = 3, one draw. No setting was chosen by what is here.
What lies outside are coefficients of the marker alone, drawn towards none. Every answer carries the caution of the
mechanism, the right ones too.
"""
AFTER = """Two simulated trials of 40,000 heart attacks in sixteen regions of 500 to 5,000, 7 % of whom die within 30
days (`tests/benchmarks/worlds/trial.py`), and nine real tables (`tests/benchmarks/worlds/packaged.py`): a German panel,
American and Australian visits, procedures, mortgages, tumours, AIDS, wages and unemployment, in three to five parts
that are their own where they have any. They belong to neither half. Latent noise is the first look, before anything was
changed by them; its cautions beside the nine tables are counted anew, after it was seen there which of them stood by
counts. Noisy moments on them were run again with every coefficient declared, under noise of a fresh seed; two models
were refused there for a nominal covariate. Noisy moments take one since: the line below has these two (tumours in four
stages) and two of patients in intensive care with no, a local or a metastatic cancer.
"""
AS_NEW = """A new plan of noisy moments declares every coefficient. Measured of it are eleven models, which of a
world's outcomes in rotation, two draws of each, on a seed that no record had used before; three worlds of this half
have a column that their histograms do not show, and rotterdam asks about a factor. Of these laws `unequal variances`
was looked at when it was decided where influences are cut, and u-shapes and flchain with other outcomes; no setting was
chosen by the others.
"""
SPREADS = """Logistic regressions where the groups of an outcome have other spreads, which no linear predictor has: the
trial whose dead come first (sixteen regions, of neither half), and two worlds of twelve sites: `unequal variances` of
the half that is reported, `unequal groups` of the half that settings are chosen on. By these figures it was chosen that
a new plan of noisy moments declares every covariate where its lead names none, and that `plan check` warns of each that
is not declared. So a setting was chosen on two worlds that are reported on, and this table is no evidence for it.
"""
RUN_AFTER = """Run after the choice, on a seed that no record had used before: binary outcomes and survival in those
worlds of the reported half that noisy moments take (three have a column that their histograms do not show), and in its
real tables at their own sizes, whose records are the same and whose noise is drawn anew. One of these, rotterdam, asks
about a factor of three levels and is answered from synthetic rows in both arms; the law of `unequal variances`, on
other patients, is among those that the choice was made by. Nothing was changed by these figures.
"""
LONGER = """In both tables above declared influences were cut where their variance is smallest. What lay outside at
ε = 3 did so by what was cut off, and they are cut further out since
([decision 42](decisions/0042-a-declared-coefficient-is-the-regressions-own.md)). The four worlds by which the cause was
found, on patients and noise of a fresh seed; that they were looked at before makes this no evidence for other worlds.
"""
TAILS = """Days in hospital as a measurement (azpro: the most is 83, the mean 9), and survival by light chains and
creatinine (flchain), whose largest values are twenty of their spreads away. Both are among the tables above. Of azpro
the larger effects are told too near to none at ε = 1 and 3, in intervals that are too narrow; of flchain kappa is told
too large. A few records decide much of such a coefficient, and three things leave them out: the cells of a histogram
are too wide for them at these bounds, and the few in the tail are fewer than its noise; the moments cut them; and an
influence is cut where noise would cost more than patients. What is left says what the model says of the tail, and that
is not the records'. Tried, and not kept, for it mended little: residuals of a measurement that have the shape of its
histogram, and a spread that grows with the mean as that of a skewed law does. With the true shape they would do; a
noisy histogram does not have it. A larger ε cuts further out, and does.
"""
COMPARED = """With every coefficient declared the intervals are narrower and hold no less often. That they hold more
often is within what chance does here; the table that the choice was made by showed a larger difference.
"""
CATCH = """That four fifths of the wrong answers carry a caution and at most one fifth of the right ones is what was
asked. It can be reached of answers that are wrong for a reason. An interval of 95 % is outside now and then by noise
alone, and noise that happened to push an answer far leaves next to nothing else in the release: a caution stands by
such an answer about as often as by a right one. How many answers that makes follows from the widths: an interval that
is *w* times as wide as the records' own, and exact, does not hold the records' answer with chance
2 Φ(−1.96 w / √(w² − 1)). *Most that cautions can catch* is what is outside beyond that, and a fifth of the rest, of all
that is outside.
"""
WORDS = """## What to make of it

Latent noise: with up to 5,000 patients a hospital hardly an answer is outside its interval, so that there is
next to nothing for a caution to stand by, and that four fifths of the wrong answers carry one cannot be shown. Of
counts one stands where few rows decide a coefficient; of other outcomes it seldom does.

Noisy moments: in a plan that declares nothing, what makes an answer wrong leaves no trace in the sums, and no caution
can tell it ([decision 35](decisions/0035-cautions-that-mean-something.md)): that is an argument. The table above
measured nothing where it has no wrong answer. Of coefficients that a plan does not declare every answer carries a
caution, the right and the wrong alike; tables whose command has no `--declared` and that show fewer were measured
before it did. A declared coefficient carries one where its own score and its moment with the outcome contradict each
other by three standard errors over all sites: the model is wrong there, in whichever direction, and the answer may be
right all the same. The threshold was chosen on the half that settings are chosen by. At ε = 1 noise hides most of these
contradictions.
Of what has a long tail as a measurement see above: plan days in hospital as a count, which held; `plan check` warns
of whole numbers as a measurement.

Noisy tables: one model is fitted to all hospitals' counts, and the answer steps from there to each one's
([decision 44](decisions/0044-tables-are-read-together.md)); when every hospital was read alone, a pool of twelve held
the records' answer in 81 and 76 %. Intervals are wide at ε = 1. What is left of a covariate with few bins among the
persons, such as a pressure within public bounds, is somewhat drawn towards zero. Columns of which one bin holds most
persons are left out here, as in the product; they were wrong throughout. The coefficients beside them are not adjusted
for them: three of the four wrong ones of the simulated worlds are of a pressure in whose model the marker that it goes
with is left out. Each such coefficient carries a caution since, the right ones too, which in these worlds are all:
their marker's bounds are wide, and it is no caution by chance. Take tables for shares and cross tables, and narrow
bounds.
"""
