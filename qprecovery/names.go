package qprecovery

import "fmt"

// parseName is the inverse of a String method whose values begin at 0 and end before n.
func parseName[T interface {
	~uint8
	fmt.Stringer
}](to *T, text []byte, n T) error {
	for v := range n {
		if v.String() == string(text) {
			*to = v
			return nil
		}
	}
	return fmt.Errorf("unknown %T %q", *to, text)
}

// UnmarshalText reads the name.
func (s *State) UnmarshalText(text []byte) error { return parseName(s, text, numState) }

// MarshalText writes the name.
func (h hold) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads the name. One that another version has added becomes holdHeld: the device is reset.
func (h *hold) UnmarshalText(text []byte) error {
	if parseName(h, text, numHold) != nil {
		*h = holdHeld
	}
	return nil
}

// UnmarshalText reads the name.
func (s *DeviceState) UnmarshalText(text []byte) error { return parseName(s, text, numDeviceState) }

// UnmarshalText reads the name.
func (r *Rung) UnmarshalText(text []byte) error { return parseName(r, text, NumRung) }

// UnmarshalText reads the name.
func (r *Reason) UnmarshalText(text []byte) error { return parseName(r, text, NumReason) }
