"""Old names of the operators of one compacted queue; see :mod:`queuekeeper.airflow.operators._retired`."""

from queuekeeper.airflow.operators._retired import names_of

__getattr__ = names_of(__name__)
