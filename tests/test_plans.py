"What TRL's batch numbers come to."
import pytest
from grpo_nb.parts.batch_plan import batch_plan

def test_a_batch_is_legal_exactly_when_groups_are_whole_over_all():
    for w in (1,2,3,8):
        for rows in [(b, s) for b in range(1, 5) for s in range(1, 4)]:
            for G in range(2, 9):
                b,s = rows
                plan = batch_plan(G, b, 1, w, s)
                said = str(plan['problem'])
                assert ('cannot be split into whole groups' in said)==bool(w*b*s%G), said
                if not w*b*s%G: assert plan['legal'] and bool(plan['straddling'])==bool(b*s%G)
    with pytest.raises(ValueError, match='whole number'): batch_plan(2, 1, 1, 0, 1)
    assert 'group of 1 has nothing' in batch_plan(1, 2, 1, 1, 1)['problem']
