"""What docs/zoo.md says around its tables, one sentence a line."""

HEAD = """# The zoo: what is true on data that nobody tuned to

This page is written by `python -m tests.benchmarks.zoo_page` from the files in `tests/benchmarks/results/`.
Each file names the command that made it.
Nineteen simulated worlds and four real tables, each hard in its own way, go through the product: plan, fit, release, \
estimates, pooling.
Settings are chosen on one half of them (by the last byte of a name's digest) and reported here on the other half.
These figures are held against the records:

* **bias**: the released pooled coefficient minus that of the records, in standard errors of the records' pooled \
coefficient, averaged over draws.
  Noise alone makes a bias of about 0.5 in a single draw, and less in the mean of several.
* **holds the records / the law**: the share of released pooled 95 % intervals that hold the records' own pooled \
coefficient, and the share that hold the coefficient of the law that the worlds are drawn from (in brackets: the \
share of the records' own intervals that hold the law's).
* **width**: the interval's width as a multiple of the records'.
* **I²**: released minus real, in points, mean.
* **distance holds**: how often the records' coefficient lay within the distance that an answer gives \
for "nine cases of ten".
* **cautioned**: answers that carry a caution, among those whose interval does not hold the records' coefficient, and \
among those whose interval does.
  Figures with † were counted before the common dispersion of counts was taken out of the caution \
([decision 35](decisions/0035-cautions-that-mean-something.md)); most of those are of counts.

With ‡ noisy moments were measured with older code.
Either numeric columns were not yet read by the histograms of all hospitals together \
([decision 32](decisions/0032-moments-are-read-together.md)), which mattered most below 1,000 patients a hospital.
Or intervals did not yet hold what contradictory figures may take \
([decision 35](decisions/0035-cautions-that-mean-something.md)), which matters where a caution tells of them.
Or levels of a nominal covariate could overlap ([decision 32](decisions/0032-moments-are-read-together.md)).

After a share stands its 95 % interval by chance, as if answers were independent; coefficients of one model are not \
quite independent.
A dash means that a figure was not measured, or that there is no such case.
"""
TOGETHER = """Two types of outcome of each world, one draw.
These sizes were first looked at before numeric columns were read by the histograms of all hospitals together \
([decision 32](decisions/0032-moments-are-read-together.md)).
At that time answers on a measurement at 300 patients were too small and their intervals too narrow.
That showed that something was missing, but no number was chosen by these figures.
What remains comes from the planned model: `wild counts` has a measurement whose mean this model cannot follow, at \
every n.
The model's own error becomes smaller neither with patients nor with sites, and the interval allows for a small one \
only.
So 48 hospitals of 5,000 and 20,000 patients, which were run after all others, miss the bar: as in logistic models of \
`u shape`, Cox models of `coarse times` and measurements of `wild counts`.
They were run again since intervals hold what contradictory figures may take: answers whose figures contradict each \
other are right but for one, and those that are left carry no caution.
On the half that settings are chosen by the same sizes hold, so that nothing further could be chosen there.
"""
BARS = """
The last column says whether a target is reached, and of what is missed where and how far.
"Within chance" stands where the target is within the 95 % interval by chance.
*Noise alone* is the median and 95th percentile of the distance that there would be if intervals were exact and draws \
independent: an interval *w* times as wide as the records' has an error of its own of √(w² − 1) of their standard \
errors, which are √(1 − 1/w²) of its own.
A bias below that cannot be told from none.
After *outside* stand the models with most of the answers whose interval does not hold the records' answer.
Of a row that is the lowest of several sizes, types or worlds, the last column says how many *are below* the target.
Where no answer is wrong, no wrong answer can carry a caution; what a caution can catch at all is said \
[below](#what-a-caution-can-catch).
Transitivity and triangles of GRAND's networks are refused; capped counts answer them ([networks.md](networks.md)).
Where I² is far below the records', noise hides what hospitals differ by: their spread is then read as none.
Rows on the distance count those, too, that are withheld since beside the caution that rows deny the model, as if they \
were given; records do not keep which caution stands by an answer.
A planted copy stands in a release that is fitted and drawn as an agent does it, but not rehearsed first, as an agent \
does; it is a row of a person who is unlike everybody else; in tables of few coarse columns a row drawn for a \
stranger may be the same ([latent noise](benchmarks/latent-noise.md)).

This zoo does not have:

- flows trained with noise and secure sums, whose figures are of other worlds ([moments](benchmarks/moments.md));
- the postures `holdout` and `public`: latent noise here is `local`;
- latent noise of 20,000 patients in more than three worlds, and of n and K other than 1,000 and 12 more than two of \
the five types of outcome of a world, by turns, and one draw \
(the count beside a [heavy tail](#counts-beside-a-heavy-tail), which turns had left out, was asked later);
- shares of groups by moments, tables and slicing;
- counts by tables: of the visits of these worlds most persons are in one released bin, so that every model of them is \
refused;
- densities of which more than a mean is asked;
- networks of other sizes than 700 and 2,000 persons, and of more than one hospital;
- equal rows with more than 1,000 patients a hospital;
- tables and densities with more than 5,000 patients a hospital, and slicing with more than 1,000;
- cross-products with more than 5,000 patients a hospital;

A pool is not refused where most of its sites doubt: its interval is wider, and a caution says so.
No pooled coefficient is moved by an estimated bias; what a release draws towards none is reported and widens the \
interval.
Both were asked for, and [tried](#refusing-a-pool-that-most-of-its-sites-doubt).
"""

HEAVY = """## Counts beside a heavy tail

The marker of `heavy tails` has a Pareto tail, its pressure that of t on 2.5 degrees of freedom.
The turns by which two types of outcome of each world were taken had left out its count.
It was asked later, with yes or no beside it in the same patients: latent noise, outcomes drawn last, one draw.
*The flows' own* bias is that of so many rows drawn from the flows that no noise is left.
"""
HEAVY_LOGGED = """With the marker's logarithm planned, and survival beside the count, at w = 0.8.
Survival holds then, also of 20,000 patients, where of the marker itself it was the least of all ([above](#targets)).
Counts hold more often, and are still false of many patients: the visits of this world have such a tail themselves.
"""
TABLES = """## Noisy tables by patients and sites: ε = 1

Two types of outcome of each world, one draw.
No setting was chosen by these figures.
"""
DENSITIES = """## Densities by patients and sites: a mean, ε = 1

The score's mean of each world, three draws.
No setting was chosen by these figures.
"""
CROSS = """## Cross-products by patients and sites: linear models, ε = 1

The model of the score of each world, three draws.
No setting was chosen by these figures.
"""
SLICING = """## Slicing of small hospitals: ε = 3

Two types of outcome of each world, one draw.
Sites are answered from one model of how columns hang together, whose error they have in common \
([decision 58](decisions/0058-slicing-of-several-sites-from-one-model.md)).
No setting was chosen by these figures.
Every answer carries the mechanism's caution, the right ones too.
"""
AFTER = """Two simulated trials of 40,000 heart attacks in sixteen regions of 500 to 5,000, 7 % of whom die within 30 \
days (`tests/benchmarks/worlds/trial.py`), and nine real tables (`tests/benchmarks/worlds/packaged.py`).
The nine are a German panel, American and Australian visits, procedures, mortgages, tumours, AIDS, wages and \
unemployment, in three to five parts, which are the tables' own parts where they have any.
They belong to neither half.
The figures of latent noise are of the first look, before anything was changed because of them.
Its cautions on the nine tables were counted again, after it was seen there which of them came from counts.
Noisy moments were run on them again with every coefficient declared, under noise of a fresh seed; two models were \
refused there because of a nominal covariate.
Noisy moments accept a nominal covariate since: the line below has these two (tumours in four stages) and two of \
patients in intensive care with no, a local or a metastatic cancer.
"""
AS_NEW = """A new plan of noisy moments declares every coefficient.
It was measured on eleven models, with the outcomes of the worlds in rotation and two draws of each, on a seed that \
no record had used before.
Three worlds of this half have a column that their histograms do not show, and rotterdam asks about each level of \
an ordered column.
Of these laws `unequal variances` was looked at when it was decided where influences are cut, and so were u-shapes and \
flchain with other outcomes; no setting was chosen by the others.
"""
SPREADS = """Logistic regressions where the groups of an outcome differ in spread, which no linear predictor describes.
They are of the trial whose dead come first (sixteen regions, of neither half), and of two worlds of twelve sites: \
`unequal variances` of the reported half, and `unequal groups` of the half that settings are chosen on.
These figures decided that a new plan of noisy moments declares every covariate where its lead names none, and that \
`plan check` warns of each covariate that is not declared.
So a setting was chosen on two worlds that are reported on, and this table is no evidence for it.
"""
RUN_AFTER = """These were run after the choice, on a seed that no record had used before.
They have binary outcomes and survival in those worlds of the reported half that noisy moments accept (three have a \
column that their histograms do not show), and in its real tables at their own sizes, whose records are the same and \
whose noise is drawn anew.
One of these, rotterdam, asks about each level of an ordered column and is answered from synthetic rows in both arms.
The law of `unequal variances`, on other patients, is among those that the choice was made by.
Nothing was changed because of these figures.
"""
LONGER = """In both tables above declared influences were cut where their variance is smallest.
At ε = 3 the answers that lay outside did so by what was cut off, so influences are cut further out since \
([decision 42](decisions/0042-a-declared-coefficient-is-the-regressions-own.md)).
The table has the four worlds by which the cause was found, on patients and noise of a fresh seed.
They had been looked at before, so this is no evidence for other worlds.
"""
TAILS = """The models are of days in hospital as a measurement (azpro: the most is 83, the mean 9), and of survival \
by light chains and creatinine (flchain), whose largest values are twenty of their spreads away.
Both tables are among those above.
For azpro the larger effects come out too near to none at ε = 1 and 3, in intervals that are too narrow; for flchain \
the effect of kappa comes out too large.
A few records decide much of such a coefficient, and three things leave them out.
The cells of a histogram are too wide for them at these bounds, and the few in the tail are fewer than its noise.
The moments cut them.
An influence is cut where noise would cost more than patients.
What is left says what the model says of the tail, and that differs from the records.
Two remedies were tried and not kept, because they mended little: residuals of a measurement that have the shape of \
its histogram, and a spread that grows with the mean as that of a skewed law does.
With the true shape they would work; a noisy histogram does not have it.
A larger ε cuts further out, and works.
"""
COMPARED = """With every coefficient declared the intervals are narrower and hold no less often.
That they hold more often is within chance here; the table that the choice was made by showed a larger difference.
"""
CATCH = """What was asked is that four fifths of the wrong answers carry a caution, and at most one fifth of the \
right ones.
That can be reached for answers that are wrong for a reason.
But an interval of 95 % misses now and then by noise alone.
Noise that happened to push an answer far leaves next to nothing else in the release, so a caution stands by such an \
answer about as often as by a right one.
The widths say how many such answers there are: an interval that is *w* times as wide as the records' own, and exact, \
misses the records' answer with chance 2 Φ(−1.96 w / √(w² − 1)).
*Most that cautions can catch* is what lies outside beyond that chance, plus a fifth of the rest, as a share of all \
that lies outside.
"""
WORDS = """## What to make of it

**Latent noise.**
With up to 5,000 patients a hospital hardly an answer is outside its interval, save of counts beside a covariate with \
a [Pareto tail](#counts-beside-a-heavy-tail): at 12 and 48 hospitals of 5,000 their intervals are false, and cautions \
say so.
Elsewhere there is next to nothing for a caution to stand by, and it cannot be shown that four fifths of the wrong \
answers carry one.
For counts a caution stands where few rows decide a coefficient; for other outcomes it seldom does.

**Noisy moments.**
In a plan that declares nothing, what makes an answer wrong leaves no trace in the sums, and no caution can tell it \
([decision 35](decisions/0035-cautions-that-mean-something.md)).
That is an argument: the table above measured nothing where it has no wrong answer.
Every answer about a coefficient that a plan does not declare carries a caution, the right and the wrong alike.
Tables whose command has no `--declared` and that show fewer were measured before it did.
A declared coefficient carries one where its own score and its moment with the outcome contradict each other by three \
standard errors over all sites.
There the model is wrong, in whichever direction, and the answer may be right all the same.
Half of what the two figures differ by is a standard deviation in the interval since.
The threshold and this half were chosen on the half that settings are chosen by.
At ε = 1 noise hides most of these contradictions.
For a measurement with a long tail see above: plan days in hospital as a count, which held; `plan check` warns of \
whole numbers as a measurement.

**Noisy tables.**
One model is fitted to all hospitals' counts, and the answer steps from there to each hospital's \
([decision 44](decisions/0044-tables-are-read-together.md)).
When every hospital was read alone, a pool of twelve held the records' answer in 81 and 76 %.
Intervals are wide at ε = 1.
A covariate with few bins among the persons, such as a pressure within public bounds, is still somewhat drawn towards \
zero.
Columns of which one bin holds most persons are left out here, as in the product; they were wrong throughout.
The coefficients beside them are not adjusted for them: three of the four wrong ones of the simulated worlds are of a \
pressure in whose model the marker that it goes with is left out.
Each such coefficient carries a caution since, the right ones too, which in these worlds are all: their marker's \
bounds are wide, so this caution is not by chance.
Take tables for shares and cross tables, and narrow bounds.
"""
