"""fairseq plug-in of the SoT toolkit: pass this folder to ``--user-dir``.

Importing it registers the task and criterion ``sentence_prediction_mgcrp`` and the model ``sot_bert`` with fairseq,
and allows ``torch.load`` to read fairseq's checkpoints safely.
"""

from sot_fairseq.safe_loading import allow_fairseq_checkpoints

allow_fairseq_checkpoints()

from sot_fairseq.criterions import sentence_prediction_mgcrp as _criterion  # noqa: E402, F401
from sot_fairseq.models import sot_bert as _bert  # noqa: E402, F401
from sot_fairseq.tasks import sentence_prediction_mgcrp as _task  # noqa: E402, F401
from sot_fairseq.hub import Prediction, SentencePredictor, from_pretrained  # noqa: E402

__all__ = ["Prediction", "SentencePredictor", "from_pretrained"]
