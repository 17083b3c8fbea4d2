package control

// Scopes of a reset.
const (
	ScopeQP     = "qp"     // an interface's queue pair, in place
	ScopeCQ     = "cq"     // an interface's completion queues and queue pair
	ScopeDevice = "device" // the HCA, for all of its interfaces
)

// FaultRequest orders a fault (POST /v1/fault).
type FaultRequest struct {
	Kind   string `json:"kind"`             // one of [FaultKinds]
	After  int    `json:"after,omitempty"`  // occasions that pass before it strikes
	Count  int    `json:"count,omitempty"`  // occasions that it strikes; 1 when 0
	Verb   string `json:"verb,omitempty"`   // the verb, for verb_hangs and verb_hangs_forever; empty: any
	Device string `json:"device,omitempty"` // empty: the only one
}

// ResetRequest orders a reset (POST /v1/reset).
type ResetRequest struct {
	Scope     string `json:"scope"`               // qp, cq or device
	Interface string `json:"interface,omitempty"` // of qp and cq; empty: the only one
	Device    string `json:"device,omitempty"`    // of device; empty: the only one
}

// RecoverRequest orders a new start after a give-up (POST /v1/recover).
type RecoverRequest struct {
	Device string `json:"device,omitempty"` // empty: the only one
}
