"""fairseq plug-in of the SoT toolkit: pass this folder to ``--user-dir``.

Importing it registers the task and criterion ``sentence_prediction_mgcrp``, the model ``sot_bert`` and XLM-R's
architectures with fairseq, lets fairseq load checkpoints safely and evaluate no strings, and lets it gather logged
values on the CPU too.
"""

from sot_base.command_help import asked_for_help

if not asked_for_help():
    from sot_base.garbage import collect_later
    from sot_base.later_import import import_later
    from sot_fairseq.fairseq_patches.quiet_import import quiet_import

    with collect_later(), quiet_import(), import_later("sklearn", "scipy"):  # only stock metrics call them
        from sot_fairseq.criterions import sentence_prediction_mgcrp as _criterion  # noqa: F401
        from sot_fairseq.fairseq_patches.checkpoint_writing import write_whole_checkpoints
        from sot_fairseq.fairseq_patches.data_paths import take_paths_with_colons
        from sot_fairseq.fairseq_patches.divergence import report_divergence
        from sot_fairseq.fairseq_patches.fused_adam import update_in_one_pass
        from sot_fairseq.fairseq_patches.gather import gather_on_cpu_too
        from sot_fairseq.fairseq_patches.optimizer_start import create_optimizers_without_compiler
        from sot_fairseq.fairseq_patches.padding_mask import never_wait_for_padding
        from sot_fairseq.fairseq_patches.safe_loading import load_safely
        from sot_fairseq.fairseq_patches.usage_errors import is_user_dir, prepare_command_line
        from sot_fairseq.models import sot_bert as _bert  # noqa: F401
        from sot_fairseq.models import sot_xlmr as _xlmr  # noqa: F401
        from sot_fairseq.prediction.predictor import Prediction, SentencePredictor, from_pretrained
        from sot_fairseq.tasks import sentence_prediction_mgcrp as _task  # noqa: F401

    load_safely()
    gather_on_cpu_too()
    report_divergence()
    write_whole_checkpoints()
    take_paths_with_colons()
    create_optimizers_without_compiler()
    update_in_one_pass()
    never_wait_for_padding()
    if is_user_dir(__path__[0]):
        prepare_command_line()

__all__ = ["Prediction", "SentencePredictor", "from_pretrained"]
