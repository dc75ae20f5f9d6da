from layerdiff.judge.tables import *  # noqa
from layerdiff.judge.tables import PAIRS, SITES, TEXT, Columns, Source, Texts, Verdict  # noqa
