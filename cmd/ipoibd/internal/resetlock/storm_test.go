package resetlock

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// storm does random things to daemons that share a device. The stub says in
// their output when a reset met a process that had it open.
type storm struct {
	*shared
	random *rand.Rand
	all    []*daemon
	names  int
}

func (s *storm) join() {
	s.names++
	s.all = append(s.all, s.shared.join("ib"+strconv.Itoa(s.names), slow(s.upTo(20*time.Millisecond))))
}

func (s *storm) upTo(d time.Duration) time.Duration { return time.Duration(s.random.Int64N(int64(d))) }

func (s *storm) one() *daemon { return s.all[s.random.IntN(len(s.all))] }

// strike does one thing.
func (s *storm) strike() {
	victim := s.one()
	switch s.random.IntN(6) {
	case 0, 1, 2:
		victim.order("request")
	case 3:
		victim.stop()
		time.Sleep(s.upTo(100 * time.Millisecond))
		victim.signal(syscall.SIGCONT)
	case 4:
		victim.signal(syscall.SIGKILL)
		s.remove(victim)
	case 5:
		victim.leave()
		s.remove(victim)
	}
}

func (s *storm) remove(d *daemon) {
	s.all = slices.DeleteFunc(s.all, func(x *daemon) bool { return x == d })
	s.join()
}

// Daemons, leaders among them, request resets, stop, die and leave at random. The device is
// never reset while a process has it open, and in the end a reset succeeds.
func TestR11R15R16Storm(t *testing.T) {
	const daemons, strikes = 4, 60
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &storm{shared: newShared(t), random: rand.New(rand.NewPCG(seed, 0))}
	s.conf.Grace = 2 * time.Second
	for range daemons {
		s.join()
	}
	for range strikes {
		s.strike()
		time.Sleep(s.upTo(100 * time.Millisecond))
	}
	s.calm()
}

// calm waits for the end of what is under way, then makes a reset that is done.
func (s *storm) calm() {
	begin := time.Now()
	for quiet := 0; quiet < 2*len(s.all); {
		d := s.all[quiet%len(s.all)]
		d.order("status")
		if quiet++; !strings.HasPrefix(d.await("status").text, "status using idle") {
			quiet = 0
			time.Sleep(10 * time.Millisecond)
		}
		if time.Since(begin) > ample {
			s.Fatal("the storm does not end")
		}
	}
	s.Logf("calm %v after the storm", time.Since(begin))
	for _, d := range s.all {
		for d.count("ended") < d.count("pending") {
			d.await("ended")
		}
	}
	s.all[0].order("request")
	for _, d := range s.all {
		if ended := d.await("ended"); ended.text != wantsDone {
			s.Errorf("%s: %q", d.name, ended.text)
		}
		d.leave()
	}
}
