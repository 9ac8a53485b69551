"Cases of a grid: some with each push, all of them once a week, by `--weekly`"

import pytest

def most_weekly(cases, keep=1):
    "The cases as parameters; all are marked `weekly` but `keep` of them: so many, evenly spread, or these."
    cases = list(cases)
    if isinstance(keep, int): kept = {i*len(cases)//keep for i in range(keep)}
    else: kept = {cases.index(o) for o in keep}
    def parameter(i, case):
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if i in kept else pytest.mark.weekly)
    return [parameter(i, o) for i,o in enumerate(cases)]
