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
	// NumQPState bounds the enumeration for total tables.
	NumQPState
)

var qpStateNames = [NumQPState]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string { return nameOf(qpStateNames[:], int(s)) }

// QPAttr are the attributes of a UD queue pair that Modify sets and Query
// returns (struct ibv_qp_attr, those that UD has).
type QPAttr struct {
	State     QPState
	CurState  QPState // the state that the caller assumes
	PKeyIndex uint16
	Port      uint8
	QKey      QKey
	SQPSN     uint32 // 24 bits
}

// QPAttrMask says which attributes a Modify sets.
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

// Rule is one row of the UD state table: the attributes that a transition
// requires and those it allows besides. AttrState itself is always required.
type Rule struct {
	Allowed  bool
	Required QPAttrMask
	Optional QPAttrMask
}

// udTable is IBA 1.4, table 91 (QP state transition properties) for UD: from |
// to. Every state may go to RESET and to ERR. Linux (qp_state_table in
// drivers/infiniband/core/verbs.c) has the same rows, but for RESET -> ERR, which
// it refuses.
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

// UDTransition returns the rule for moving a UD QP; Allowed is false for a
// transition that does not exist, and for states out of range.
func UDTransition(from, to QPState) Rule {
	if from >= NumQPState || to >= NumQPState {
		return Rule{}
	}
	return udTable[from][to]
}

// Check reports whether a Modify with this mask satisfies the rule.
func (r Rule) Check(mask QPAttrMask) bool {
	mask &^= AttrState
	return r.Allowed && mask&r.Required == r.Required && mask&^(r.Required|r.Optional) == 0
}

// QueueBehaviour says what a state does with posted requests.
type QueueBehaviour uint8

// What happens to a request posted in a state (IBA 10.3.1).
const (
	QueueRefuses QueueBehaviour = iota // the post fails: ErrInvalid
	QueueHolds                         // taken, not processed yet
	QueueRuns                          // processed
	QueueFlushes                       // completed with WCWRFlushErr
)

// SendQueue returns what a UD QP in state s does with send requests.
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

// RecvQueue returns what a UD QP in state s does with receive requests.
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
