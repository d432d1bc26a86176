"""The round of an attempt that takes the place of another one."""

from spark_jobs.home.layout import loss_id
from spark_jobs.protocol.ids import InputName, RoundNumber, StageName
from spark_jobs.protocol.losses import LostFile, LostFiles
from spark_jobs.runtime.start.begin_round import carried_losses
from tests.support.staged_pipeline import a_manifest


def test_a_round_that_replaces_another_keeps_its_losses_up_to_the_checkpoint_and_undoes_the_others() -> None:
    def lost(number: int, source: str = "rows") -> LostFiles:
        return LostFiles(
            id=loss_id(RoundNumber(1), number),
            input=InputName(source),
            stage=StageName("copy"),
            files=(LostFile(path=str(number)),),
        )

    recorded = [lost(1), lost(2, "clicks"), lost(3)]
    before = a_manifest(1, losses=tuple(recorded[:2]))
    assert carried_losses(recorded, before, ()) == (("1-1", "1-2"), ("1-3",))
    assert carried_losses(recorded, before, [InputName("clicks")]) == (("1-1",), ("1-2", "1-3"))
    assert carried_losses(recorded, None, ()) == ((), ("1-1", "1-2", "1-3"))
    assert carried_losses(recorded, a_manifest(2), ()) == (("1-1", "1-2", "1-3"), ()), "of earlier rounds"
