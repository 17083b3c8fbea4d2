package reset

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ipoibd/qprecovery/transcript"
)

// TestTranscripts replays the transcripts in testdata. A line that begins with ">" is an
// event or a change of the other processes' state. The lines below it are the resulting
// system calls with their answers, and the actions for the user. Repeated lines are
// counted.
func TestTranscripts(t *testing.T) {
	transcript.Each(t, func(t *testing.T, text string) string {
		var s story
		for line := range strings.Lines(text) {
			switch command, ok := strings.CutPrefix(strings.TrimSpace(line), "> "); {
			case ok:
				s.flush()
				s.out.WriteString(line)
				s.do(t, command)
			case strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "":
				s.flush()
				s.out.WriteString(line)
			}
		}
		s.flush()
		return s.out.String()
	})
}

var storyDevice = Device{Parent: "eth0", Name: "rxe0", Means: "link"}

// story is a machine with a kernel in which other processes hold locks.
type story struct {
	m    *Machine
	now  time.Time
	file Record
	busy map[string]bool // intent, use (held shared by another), use! (held exclusively), removed (the files), program (has the device open)
	out  strings.Builder
	last string
	n    int
}

func (s *story) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if line != s.last {
		s.flush()
		s.last = line
	}
	s.n++
}

func (s *story) flush() {
	if s.n > 1 {
		s.last += fmt.Sprintf(" (%d times)", s.n)
	}
	if s.n > 0 {
		fmt.Fprintf(&s.out, "  %s\n", s.last)
	}
	s.last, s.n = "", 0
}

func (s *story) do(t *testing.T, command string) {
	t.Helper()
	word, arg, _ := strings.Cut(command, " ")
	switch word {
	case "start":
		conf := Config{Shared: true, Exclusive: true, Grace: 3 * time.Second, Limit: 2 * time.Second, Name: "we", Device: storyDevice}
		switch arg {
		case "alone":
			conf.Shared = false
		case "without means":
			conf.Exclusive = false
		}
		s.now, s.busy = worldStart, map[string]bool{}
		s.m = New(conf, (*storyKernel)(s))
		s.step(Event{Kind: Look})
	case "others":
		s.busy = map[string]bool{}
		for _, what := range strings.Fields(arg) {
			s.busy[what] = true
		}
	case "file":
		s.file = Record{Device: storyDevice, Number: s.file.Number, Leader: "other"}
		for _, what := range strings.Fields(arg) {
			switch what {
			case "wanted":
				s.file.Phase, s.file.Number = PhaseWanted, s.file.Number+1
			case "resetting":
				s.file.Phase, s.file.Begun = PhaseResetting, true
			case "begun":
				s.file.Begun = true
			case "other-device":
				s.file.Device.NodeGUID[7] = 1
			case "other-means":
				s.file.Device.Means = "driver"
			case "unreadable":
				s.file = Record{}
			case "idle":
			default:
				s.file.Outcome = Outcome(what)
			}
		}
		if s.m != nil {
			s.step(Event{Kind: Look})
		}
	case "want":
		s.step(Event{Kind: Want})
	case "released":
		s.step(Event{Kind: Released})
	case "done", "reset_failed", "not_permitted", "no_device", "held_by_process":
		s.step(Event{Kind: Done, Outcome: Outcome(word)})
	case "unfinished":
		s.step(Event{Kind: Done, Outcome: OutcomeFailed, Unfinished: true})
	case "killed":
		s.m = nil
	case "opened":
		s.step(Event{Kind: Opened})
	case "close":
		s.step(Event{Kind: Close})
	case "asleep":
		d, err := time.ParseDuration(arg)
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(d)
	case "advance":
		d, err := time.ParseDuration(arg)
		if err != nil {
			t.Fatal(err)
		}
		end := s.now.Add(d)
		for at, ok := s.m.NextDeadline(); ok && !at.After(end); at, ok = s.m.NextDeadline() {
			s.now = later(s.now, at)
			s.step(Event{Kind: Look})
		}
		s.now = end
	default:
		t.Fatalf("unknown command %q", command)
	}
}

func (s *story) step(ev Event) {
	before := s.m.pending || s.m.state == StateUsing
	for _, a := range s.m.Step(s.now, ev, nil) {
		switch a := a.(type) {
		case Ended:
			s.printf("user: %s", strings.TrimSuffix(fmt.Sprintf("ended, %s: %s", a.Outcome, a.Detail), ": "))
			if a.Abandon {
				s.printf("user: users left behind")
			}
		case Reset:
			s.printf("user: reset, users left behind: %t, complete: %t", a.Abandon, a.Complete)
		default:
			s.printf("user: %s", strings.TrimPrefix(fmt.Sprintf("%T", a), "reset."))
		}
	}
	if !before && s.m.state == StateUsing {
		s.printf("user: may open the device")
	}
}

// storyKernel implements Kernel for a story.
type storyKernel story

func (k *storyKernel) printf(format string, args ...any) { (*story)(k).printf(format, args...) }

func (k *storyKernel) try(what string, others ...string) bool {
	for _, o := range others {
		if k.busy[o] {
			k.printf("lock %s: busy", what)
			return false
		}
	}
	k.printf("lock %s: ours", what)
	return true
}

func (k *storyKernel) Claim() (bool, error) { return k.lock("intent", "intent") }
func (k *storyKernel) Share() bool          { return k.try("use shared", "use!") }
func (k *storyKernel) Exclude() (bool, error) {
	what := "use exclusively"
	if k.busy["program"] {
		what += ", although a program has the device open"
	}
	return k.lock(what, "use", "use!")
}
func (k *storyKernel) Disclaim() { k.printf("unlock intent") }
func (k *storyKernel) Drop()     { k.printf("unlock use") }

// lock returns an error while the files are removed.
func (k *storyKernel) lock(what string, others ...string) (ours bool, err error) {
	if k.busy["removed"] {
		k.printf("lock %s: removed", what)
		return false, errors.New("the files were removed")
	}
	return k.try(what, others...), nil
}

func (k *storyKernel) Foreign() bool { return k.busy["program"] }

func (k *storyKernel) Holders() string {
	if k.busy["program"] {
		return "program (pid 3)"
	}
	return "other (pid 2)"
}

func (k *storyKernel) Read() Record {
	k.printf("look: %s", recordText(k.file))
	return k.file
}

func (k *storyKernel) Write(r Record) {
	k.file = r
	k.printf("write %s", recordText(r))
}

func recordText(r Record) string {
	text := fmt.Sprintf("%s %d", r.Phase, r.Number)
	if r.Outcome != "" {
		text += " " + string(r.Outcome)
	}
	if r.Begun {
		text += " begun"
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}
