package hca

// QPState is a queue pair's state.
type QPState uint8

// QP states (enum ibv_qp_state, same values).
const (
	QPReset QPState = iota
	QPInit
	QPRTR
	QPRTS
	QPSQD
	QPSQE
	QPErr
	// NumQPState is the number of states, for tables.
	NumQPState
)

var qpStateNames = [NumQPState]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string { return nameOf(qpStateNames[:], int(s)) }

// QPAttr holds the attributes of a UD queue pair that Modify sets and Query
// returns (the subset of struct ibv_qp_attr that applies to UD).
type QPAttr struct {
	State     QPState
	CurState  QPState // the state that the caller assumes
	PKeyIndex uint16
	Port      uint8
	QKey      QKey
	SQPSN     uint32 // 24 bits
}

// QPAttrMask selects the attributes that Modify sets.
type QPAttrMask uint32

// Attribute bits (enum ibv_qp_attr_mask, same values).
const (
	AttrState     QPAttrMask = 1 << 0
	AttrCurState  QPAttrMask = 1 << 1
	AttrPKeyIndex QPAttrMask = 1 << 4
	AttrPort      QPAttrMask = 1 << 5
	AttrQKey      QPAttrMask = 1 << 6
	AttrSQPSN     QPAttrMask = 1 << 16
)

// Rule is one entry of the UD state table: the attributes that a transition
// requires and those that it also allows. AttrState itself is always required.
type Rule struct {
	Allowed  bool
	Required QPAttrMask
	Optional QPAttrMask
}

// udTable is IBA 1.4, table 91 (QP state transition properties) for UD, indexed by
// the states from and to. Every state may go to RESET and to ERR. Linux
// (qp_state_table in drivers/infiniband/core/verbs.c) has the same entries, except
// that it refuses RESET -> ERR.
var udTable = buildUDTable()

func buildUDTable() (t [NumQPState][NumQPState]Rule) {
	for from := QPState(0); from < NumQPState; from++ {
		t[from][QPReset].Allowed = true
		t[from][QPErr].Allowed = true
	}
	t[QPReset][QPInit] = Rule{true, AttrPKeyIndex | AttrPort | AttrQKey, 0}
	t[QPInit][QPInit] = Rule{true, 0, AttrPKeyIndex | AttrPort | AttrQKey}
	t[QPInit][QPRTR] = Rule{true, 0, AttrPKeyIndex | AttrQKey}
	t[QPRTR][QPRTS] = Rule{true, AttrSQPSN, AttrCurState | AttrQKey}
	t[QPRTS][QPRTS] = Rule{true, 0, AttrCurState | AttrQKey}
	t[QPRTS][QPSQD] = Rule{true, 0, 0}
	t[QPSQD][QPSQD] = Rule{true, 0, AttrPKeyIndex | AttrQKey}
	t[QPSQD][QPRTS] = Rule{true, 0, AttrCurState | AttrQKey}
	t[QPSQE][QPRTS] = Rule{true, 0, AttrCurState | AttrQKey}
	return t
}

// UDTransition returns the rule for moving a UD QP between two states. Allowed is
// false if there is no such transition or a state is out of range.
func UDTransition(from, to QPState) Rule {
	if from >= NumQPState || to >= NumQPState {
		return Rule{}
	}
	return udTable[from][to]
}

// Check reports whether mask satisfies the rule.
func (r Rule) Check(mask QPAttrMask) bool {
	mask &^= AttrState
	return r.Allowed && mask&r.Required == r.Required && mask&^(r.Required|r.Optional) == 0
}

// QueueBehaviour says how a work queue handles requests in a QP state.
type QueueBehaviour uint8

// How a work queue handles a posted request (IBA 10.3.1).
const (
	QueueRefuses QueueBehaviour = iota // the post fails with ErrInvalid
	QueueHolds                         // accepted, not processed yet
	QueueRuns                          // processed
	QueueFlushes                       // completed with WCWRFlushErr
)

// SendQueue returns how a UD QP in state s handles send requests.
func (s QPState) SendQueue() QueueBehaviour {
	switch s {
	case QPRTS:
		return QueueRuns
	case QPSQD:
		return QueueHolds
	case QPSQE, QPErr:
		return QueueFlushes
	case QPReset, QPInit, QPRTR, NumQPState:
	}
	return QueueRefuses
}

// RecvQueue returns how a UD QP in state s handles receive requests.
func (s QPState) RecvQueue() QueueBehaviour {
	switch s {
	case QPInit:
		return QueueHolds
	case QPRTR, QPRTS, QPSQD, QPSQE:
		return QueueRuns
	case QPErr:
		return QueueFlushes
	case QPReset, NumQPState:
	}
	return QueueRefuses
}
