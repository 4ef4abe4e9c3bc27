"""Data exchange between processes; apart from strategies, only this package uses torch.distributed."""

from lightning_tgnn.comm.exchange import (
    Conversation,
    Conversations,
    Exchange,
    InBackground,
    PendingRows,
    read_in_background,
)
from lightning_tgnn.comm.failure import (
    Attendance,
    PeerFailureError,
    PeerInterruptError,
    all_end_alike,
    handle_failure,
    is_interrupt,
    is_reported,
    keep_from_printing,
    peer_failure,
    wait_for_report,
)
from lightning_tgnn.comm.groups import ProcessGroups, leave_group_of_gpus
from lightning_tgnn.comm.hand_over import HandOver
from lightning_tgnn.comm.loopback import leave_loopback, meet_on_loopback
from lightning_tgnn.comm.messages import Message, Messages
from lightning_tgnn.comm.service import Service
from lightning_tgnn.comm.shared_memory import (
    SharedBuffer,
    mapped,
    remove_abandoned_memory,
    shared_memory_left,
    shared_tensors,
    views,
)
from lightning_tgnn.comm.traffic import Flow, StepTraffic, Traffic

__all__ = [
    "Attendance",
    "Conversation",
    "Conversations",
    "Exchange",
    "Flow",
    "HandOver",
    "InBackground",
    "Message",
    "Messages",
    "PeerFailureError",
    "PeerInterruptError",
    "PendingRows",
    "ProcessGroups",
    "Service",
    "SharedBuffer",
    "StepTraffic",
    "Traffic",
    "all_end_alike",
    "handle_failure",
    "is_interrupt",
    "is_reported",
    "keep_from_printing",
    "leave_group_of_gpus",
    "leave_loopback",
    "mapped",
    "meet_on_loopback",
    "peer_failure",
    "read_in_background",
    "remove_abandoned_memory",
    "shared_memory_left",
    "shared_tensors",
    "views",
    "wait_for_report",
]
