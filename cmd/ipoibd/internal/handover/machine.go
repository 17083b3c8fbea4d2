package handover

// state is the state of one side.
type state string

// event is what happens to it.
type event string

const (
	// Of the giver.
	asking  state = "asking"  // it prepares the offer
	offered state = "offered" // it waits for the taker, stopped
	given   state = "given"   // the taker owns everything
	kept    state = "kept"    // the giver owns everything, and continues

	// Of the taker.
	waiting  state = "waiting"  // for the offer
	building state = "building" // it owns nothing yet
	ready    state = "ready"    // it has sent taken
	owner    state = "owner"    // it owns everything
	out      state = "out"      // it owns nothing, and closes what it received

	prepared    event = "prepared"  // the giver has stopped at a boundary
	failed      event = "failed"    // this side cannot go on
	gotOffer    event = "offer"     // a message, as the next three
	gotTaken    event = "taken"     //
	gotYours    event = "yours"     //
	gotWithdraw event = "withdrawn" //
	broken      event = "broken"    // the connection has ended, or carries nonsense
	late        event = "late"      // the limit of this step has passed
)

// step is what an event leads to: the next state, and the message that is sent first, if any.
type step struct {
	to   state
	send string
}

// steps has both machines. The other events of a state cannot happen, or change nothing.
var steps = map[state]map[event]step{
	asking: {
		prepared: {offered, "offer"},
		failed:   {kept, "withdrawn"},
		broken:   {kept, "withdrawn"},
	},
	offered: {
		gotTaken: {given, "yours"},
		failed:   {kept, "withdrawn"},
		broken:   {kept, "withdrawn"},
		late:     {kept, "withdrawn"},
	},
	waiting: {
		gotOffer:    {building, ""},
		gotWithdraw: {out, ""},
		failed:      {out, ""},
		broken:      {out, ""},
		late:        {out, ""},
	},
	building: { // it does not read; what the giver sends meanwhile is read in the state ready
		prepared: {ready, "taken"},
		failed:   {out, ""},
		broken:   {out, ""},
	},
	// Without a limit, and without a way to fail, since the giver may have given everything up already.
	// A giver that lives answers, and withdraws when its own limit has passed.
	ready: {
		gotYours:    {owner, ""},
		gotWithdraw: {out, ""},
		broken:      {owner, ""}, // the giver has died
	},
}

// final reports whether a side has come to its end.
func (s state) final() bool { return s == given || s == kept || s == owner || s == out }

// becomes is the only writer of a state. An event that the table does not have for the state is a
// message at the wrong time, and breaks the connection.
func (s *state) becomes(e event) (send string) {
	next, ok := steps[*s][e]
	if !ok {
		next = steps[*s][broken]
	}
	*s = next.to
	return next.send
}
