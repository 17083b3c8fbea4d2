package reset

import (
	"testing"
	"time"
)

// handingOver is a kernel in which another process hands a reset over, and looks at the intent each pollEvery, always at the
// same time as a process that the hand-over has woken.
type handingOver struct {
	Kernel
	start time.Time
	now   *time.Time
	file  Record
}

func (k *handingOver) Read() Record   { return k.file }
func (k *handingOver) Write(r Record) { k.file = r }
func (k *handingOver) Share() bool    { return true }
func (k *handingOver) Drop()          {}
func (k *handingOver) Disclaim()      {}

func (k *handingOver) Exclude() (bool, error) { return false, nil }

func (k *handingOver) Claim() (bool, error) {
	return k.now.Sub(k.start)%pollEvery != 0, nil
}

// A process that can reset the device takes a reset over in time, although each look of the process that hands it over
// coincides with one of its own.
func TestR16LooksDoNotCoincide(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start
	k := &handingOver{start: start, now: &now, file: Record{Phase: PhaseWanted, Number: 1, Device: storyDevice, Leader: "ib0"}}
	m := New(Config{Device: storyDevice, Name: "ib1", Exclusive: true, Shared: true}, k)
	m.Step(now, Event{Kind: Look}, nil)
	m.Step(now, Event{Kind: Released}, nil)
	for !m.State().Leads() {
		at, ok := m.NextDeadline()
		if now = at; !ok || now.Sub(start) >= orphanPolls*pollEvery {
			t.Fatalf("after %v the state is %v", now.Sub(start), m.State())
		}
		m.Step(now, Event{Kind: Look}, nil)
	}
	t.Logf("leads after %v", now.Sub(start))
}
