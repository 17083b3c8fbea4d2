package reset

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// TestTranscripts replays the transcripts in testdata. A line that begins with ">" is an
// event or a change of the other processes' state. The lines below it are the resulting
// system calls with their answers, and the actions for the user. Repeated lines are
// counted.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var s story
			for line := range strings.Lines(string(want)) {
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
			if got := s.out.String(); got != string(want) {
				if *update {
					if err := os.WriteFile(name, []byte(got), 0o644); err != nil { //nolint:gosec // a golden file
						t.Fatal(err)
					}
					return
				}
				t.Errorf("got\n%s", got)
			}
		})
	}
}

var storyDevice = Device{Parent: "eth0", Name: "rxe0", Means: "link"}

// story is a machine with a kernel in which other processes hold locks.
type story struct {
	m    *Machine
	now  time.Time
	file Record
	busy map[string]bool // intent, use (held shared by another), use! (held exclusively)
	out  strings.Builder
	last string
	n    int
}

func (s *story) say(format string, args ...any) {
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
		conf := Config{Shared: true, Exclusive: true, Grace: 3 * time.Second, Limit: 2 * time.Second, Name: "we", PID: 1, Device: storyDevice}
		switch arg {
		case "alone":
			conf.Shared = false
		case "without means":
			conf.Exclusive = false
		}
		s.now, s.busy = worldStart, map[string]bool{}
		s.m = New(s.now, conf)
		s.step(Tick{})
	case "others":
		s.busy = map[string]bool{}
		for _, what := range strings.Fields(arg) {
			s.busy[what] = true
		}
	case "file":
		s.file = Record{Device: storyDevice, Number: s.file.Number, PID: 2, Leader: "other"}
		for _, what := range strings.Fields(arg) {
			switch what {
			case "wanted":
				s.file.Phase, s.file.Number = PhaseWanted, s.file.Number+1
			case "resetting":
				s.file.Phase, s.file.Begun = PhaseResetting, true
			case "begun":
				s.file.Begun = true
			case "unreadable":
				s.file.Phase = PhaseBad
			default:
				for o := range numOutcome {
					if o.String() == what {
						s.file.Outcome = o
					}
				}
			}
		}
		if s.m != nil {
			s.step(Seen{s.file})
		}
	case "want":
		s.step(Want{})
	case "released":
		s.step(Released{s.m.serial})
	case "done", "failed", "denied", "absent":
		outcomes := map[string]Outcome{"done": OutcomeDone, "failed": OutcomeFailed, "denied": OutcomeDenied, "absent": OutcomeAbsent}
		s.step(ResetDone{Outcome: outcomes[word]})
	case "close":
		s.step(Close{})
	case "advance":
		d, err := time.ParseDuration(arg)
		if err != nil {
			t.Fatal(err)
		}
		end := s.now.Add(d)
		for at, ok := s.m.NextDeadline(); ok && !at.After(end); at, ok = s.m.NextDeadline() {
			s.now = later(s.now, at)
			s.step(Tick{})
		}
		s.now = end
	default:
		t.Fatalf("unknown command %q", command)
	}
}

// step gives the machine an event, and then the answers to its actions.
func (s *story) step(ev Event) {
	for queue := s.m.Step(s.now, ev, nil); len(queue) > 0; queue = queue[1:] {
		answer := s.act(queue[0])
		if answer != nil {
			queue = s.m.Step(s.now, answer, queue)
		}
	}
}

func (s *story) act(a Action) Event {
	held := map[bool]string{true: "ours", false: "busy"}
	switch a := a.(type) {
	case Look:
		s.say("look: %s", recordText(s.file))
		return Seen{s.file}
	case Claim:
		s.say("lock intent: %s", held[!s.busy["intent"]])
		return Claimed{!s.busy["intent"], s.file}
	case Share:
		s.say("lock use shared: %s", held[!s.busy["use!"]])
		return Taken{Held: !s.busy["use!"]}
	case Exclude:
		free := !s.busy["use"] && !s.busy["use!"]
		s.say("lock use exclusively: %s", held[free])
		return Taken{Held: free, By: map[bool]string{true: "other (pid 2)"}[a.Name]}
	case Disclaim:
		s.say("unlock intent")
	case Drop:
		s.say("unlock use")
	case Write:
		s.file = a.Record
		s.say("write %s", recordText(a.Record))
	case Ended:
		s.say("user: %s", strings.TrimSuffix(fmt.Sprintf("ended, %s: %s", a.Outcome, a.Detail), ": "))
	case Open, Release, Silent, Answers:
		s.say("user: %s", strings.TrimPrefix(fmt.Sprintf("%T", a), "reset."))
	case Reset:
		s.say("user: reset, users left behind: %t, complete: %t", a.Abandon, a.Complete)
	}
	return nil
}

func recordText(r Record) string {
	text := fmt.Sprintf("%s %d", r.Phase, r.Number)
	if r.Outcome != OutcomeNone {
		text += " " + r.Outcome.String()
	}
	if r.Begun {
		text += " begun"
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}
