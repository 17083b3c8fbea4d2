package qprecovery

import "fmt"

// parseName is the inverse of a String method whose values begin at 0 and end before n. A name that another version
// has added becomes other, so that this one can still take over its state.
func parseName[T interface {
	~uint8
	fmt.Stringer
}](text []byte, n, other T) T {
	for v := range n {
		if v.String() == string(text) {
			return v
		}
	}
	return other
}

// UnmarshalText reads the name. It never fails: another one becomes Idle.
func (s *State) UnmarshalText(text []byte) error { *s = parseName(text, numState, Idle); return nil }

// MarshalText writes the name.
func (h hold) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads the name. It never fails: with another one, the device is reset.
func (h *hold) UnmarshalText(text []byte) error { *h = parseName(text, numHold, holdHeld); return nil }

// UnmarshalText reads the name. It never fails: another one becomes DeviceStarting.
func (s *DeviceState) UnmarshalText(text []byte) error {
	*s = parseName(text, numDeviceState, DeviceStarting)
	return nil
}

// UnmarshalText reads the name. It never fails: another one becomes RungNone.
func (r *Rung) UnmarshalText(text []byte) error { *r = parseName(text, NumRung, RungNone); return nil }

// UnmarshalText reads the name. It never fails: another one becomes ReasonNone.
func (r *Reason) UnmarshalText(text []byte) error {
	*r = parseName(text, NumReason, ReasonNone)
	return nil
}
