"""State-space layers: the topologies of one equation each, and the selective scan."""

from centaurus.ssm.layer import SSM
from centaurus.ssm.selective import S6
from centaurus.ssm.topology import EQUATIONS, Topology

__all__ = ["EQUATIONS", "S6", "SSM", "Topology"]
