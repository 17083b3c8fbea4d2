package bpf

import "fmt"

// Steering is a program for TUNSETSTEERINGEBPF.
type Steering struct{ objects steerObjects }

// NewSteering loads a program that spreads flows over the first queues of a TAP. Errors:
// ErrNotPermitted, ErrNotSupported, the verifier's.
func NewSteering(queues int) (*Steering, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["queues"].Set(uint32(queues)); err != nil {
		return nil, fmt.Errorf("set the number of queues to %d: %w", queues, err)
	}
	s := new(Steering)
	if err := load("steer", spec, &s.objects, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// FD returns the descriptor of the program, which is valid until Close. A TAP to which it is
// attached keeps the program.
func (s *Steering) FD() int { return s.objects.Steer.FD() }

// Close releases the program. Idempotent.
func (s *Steering) Close() error {
	if err := s.objects.Close(); err != nil {
		return fmt.Errorf("close the eBPF steering program: %w", err)
	}
	return nil
}
