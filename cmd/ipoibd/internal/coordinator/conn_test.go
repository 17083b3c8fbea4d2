package coordinator

import (
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/qprecovery/reset"
)

// piped is a connection that no socket carries, of a process that nobody knows.
type piped struct{ nc net.Conn }

func (n piped) tell(o *owner) { o.host.admit(n.nc, 0, nil) }

// inBubble runs f with a host in virtual time. A pipe has no buffer: who does not
// read it stops who writes.
func inBubble(t *testing.T, f func(*testing.T, *owner)) {
	synctest.Test(t, func(t *testing.T) {
		o := start(Config{Device: "soft0", Reset: (&verb{}).reset, Log: slog.New(slog.DiscardHandler)}, nil)
		defer o.Close()
		<-o.joined
		f(t, o)
	})
}

func pipe(t *testing.T, o *owner) *raw {
	t.Helper()
	here, there := net.Pipe()
	if !o.report(piped{there}) {
		t.Fatal("the owner has ended")
	}
	return newRaw(t, here)
}

// endsAfter expects the connection to end after d.
func endsAfter(t *testing.T, r *raw, d time.Duration) {
	t.Helper()
	begin := time.Now()
	r.expectEnd()
	if took := time.Since(begin); took != d {
		t.Errorf("ended after %v, want %v", took, d)
	}
}

func TestR16NewcomerThatIsSilent(t *testing.T) {
	inBubble(t, func(t *testing.T, o *owner) { endsAfter(t, pipe(t, o), frameTime) })
}

// Byte by byte, a frame takes no longer than its time either.
func TestR16HalfAMessageAndSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, o *owner) {
		r := pipe(t, o)
		r.hello(7)
		time.Sleep(time.Hour) // idle is not silent
		half := frame(t, reset.Ready{Reset: 1})
		r.write(half[:1])
		time.Sleep(frameTime / 2)
		r.write(half[1:2])
		endsAfter(t, r, frameTime/2)
		synctest.Wait()
		if s := o.Status(); s.Refused != 1 || len(s.Members) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Messages that come in one piece, and in pieces of any size, are the same.
func TestR16MessagesInPieces(t *testing.T) {
	inBubble(t, func(t *testing.T, o *owner) {
		all := append(frame(t, reset.Hello{ID: 7, Name: "raw"}), frame(t, reset.Request{})...)
		for size := 1; size <= len(all); size++ {
			r := pipe(t, o)
			go func() {
				for at := 0; at < len(all); at += size {
					_, _ = r.nc.Write(all[at:min(at+size, len(all))])
				}
			}()
			id := next[Pending](t, o.Coordinator, soon).ID
			heardBy[reset.Pending](r)
			o.Released(id)
			r.say(reset.Ready{Reset: id})
			heardBy[reset.Ended](r)
			next[Ended](t, o.Coordinator, soon)
			r.say(reset.Leave{})
			r.expectEnd()
		}
	})
}

// Who does not read is dropped, and the others are served meanwhile.
func TestR15ClientThatDoesNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, o *owner) {
		deaf := pipe(t, o)
		deaf.say(reset.Hello{ID: 7, Name: "deaf"})
		synctest.Wait() // it is registered
		r := pipe(t, o)
		r.hello(8)
		o.Request()
		o.Released(next[Pending](t, o.Coordinator, soon).ID)
		r.say(reset.Ready(heardBy[reset.Pending](r)))
		begin := time.Now()
		heardBy[reset.Ended](r)
		if took := time.Since(begin); took != writeTime {
			t.Errorf("reset after %v, want %v: its end is the end of its process here", took, writeTime)
		}
		synctest.Wait()
		if s := o.Status(); len(s.Members) != 1 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// However much there is to say to who does not read, the queue is bounded.
func TestR15QueueIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, o *owner) {
		deaf := pipe(t, o)
		deaf.say(reset.Hello{ID: 7, Name: "deaf"})
		synctest.Wait() // it is registered
		begin := time.Now()
		for range queueLen { // each comes and goes, of which everybody is told
			r := pipe(t, o)
			r.hello(8)
			r.say(reset.Leave{})
			r.expectEnd()
		}
		synctest.Wait()
		if s := o.Status(); s.Refused != 1 || len(s.Members) != 0 || time.Since(begin) != 0 {
			t.Errorf("%+v after %v", s, time.Since(begin))
		}
	})
}

// Close waits for what was said, but not for long.
func TestR15CloseWaitsForNobodyLong(t *testing.T) {
	inBubble(t, func(t *testing.T, o *owner) {
		deaf := pipe(t, o)
		deaf.say(reset.Hello{ID: 7, Name: "deaf"})
		synctest.Wait() // it is registered
		begin := time.Now()
		o.Close()
		if took := time.Since(begin); took != closeTime {
			t.Errorf("took %v, want %v", took, closeTime)
		}
	})
}
