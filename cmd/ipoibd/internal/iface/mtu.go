package iface

// mtuState remembers what the daemon set, to tell it from what the operator
// set.
type mtuState struct {
	ours int // the last MTU that the daemon gave the interface, 0 for none
}

// fit returns the MTU that the interface is to have: configured if the group
// allows it (0: the group's own largest), but never more than that. An MTU
// below it that the daemon did not set is the operator's, and stays.
func (s mtuState) fit(have, configured, largest int) int {
	want := largest
	if configured != 0 {
		want = min(configured, largest)
	}
	if have > largest || have == s.ours {
		return want
	}
	return have
}
