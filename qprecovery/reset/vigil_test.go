package reset

import (
	"testing"
	"time"
)

// waitFor lets time pass until the client wants to be called.
func (b *clientBench) waitFor(d time.Duration, want ...ClientAction) {
	b.Helper()
	at, ok := b.c.NextDeadline()
	if !ok || at.Sub(b.now) != d {
		b.Fatalf("the next deadline is in %v (%v), want %v", at.Sub(b.now), ok, d)
	}
	b.now = at
	b.step(ClientTick{}, want...)
}

// quiet makes sure that nothing is due.
func (b *clientBench) quiet() {
	b.Helper()
	if at, ok := b.c.NextDeadline(); ok {
		b.Errorf("something is due in %v", at.Sub(b.now))
	}
}

// A host that does not answer a request is told of once, with the time of the
// request; the request stands, and the client does nothing else about it.
func TestR14R16SilentHost(t *testing.T) {
	b := newClientBench(t).up()
	b.quiet()
	b.now = b.now.Add(time.Hour) // nobody owes anything
	asked := b.now
	b.step(WantReset{}, Say{Request{}})
	b.waitFor(DefaultGrace, HostSilent{Since: asked})
	b.quiet()
	b.now = b.now.Add(time.Hour)
	b.step(ClientTick{})
	b.step(WantReset{})
	b.step(Heard{Pending{5}}, Release{5}, HostAnswers{})
	end := Ended{Reset: 5, Outcome: OutcomeDone}
	b.step(Heard{end}, Restart{end})
	b.quiet()
}

// Within a reset the host has its grace period and the limit of the reset; each
// word of it counts.
func TestR14R16SilentHostWithinAReset(t *testing.T) {
	const whole = DefaultGrace + DefaultLimit + answerMargin
	b := newClientBench(t).up()
	b.step(Heard{Pending{5}}, Release{5})
	b.now = b.now.Add(DefaultGrace)
	b.step(Released{5}, Say{Ready{5}})
	b.step(Heard{Roster{}})
	heard := b.now
	b.waitFor(whole, HostSilent{Since: heard})
	b.step(Heard{Roster{}}, HostAnswers{})
	again := b.now
	b.waitFor(whole, HostSilent{Since: again})
	b.step(Disconnected{}) // it was killed
	b.waitFor(retryMin, Dial{})
	b.quiet()
}

// One that takes a newcomer's connection and says nothing is silent, too.
func TestR16SilentHostOfANewcomer(t *testing.T) {
	b := newClientBench(t)
	b.step(ClientTick{}, Dial{})
	b.step(Connected{}, Say{Hello{ID: 7, Name: "ib0"}})
	b.waitFor(DefaultGrace, HostSilent{Since: worldStart})
	b.step(Heard{Roster{}}, Open{}, HostAnswers{})
	b.quiet()
}

// A process that was stopped itself reads what came meanwhile before it judges.
func TestR14ClientThatWasStopped(t *testing.T) {
	b := newClientBench(t).up()
	asked := b.now
	b.step(WantReset{}, Say{Request{}})
	b.now = b.now.Add(DefaultGrace + lateStep + 1)
	b.step(ClientTick{})
	b.waitFor(answerMargin, HostSilent{Since: asked})
	b.step(Heard{Pending{5}}, Release{5}, HostAnswers{})
}

func TestR14SilentAfterTheConfiguredTimes(t *testing.T) {
	conf := ClientConfig{ID: 7, Grace: 2 * time.Second, Limit: time.Second}
	b := &clientBench{t, NewClient(worldStart, conf), worldStart}
	b.step(ClientTick{}, Dial{})
	b.step(Connected{}, Say{Hello{ID: 7}})
	b.step(Heard{Roster{}}, Open{})
	b.step(WantReset{}, Say{Request{}})
	b.waitFor(conf.Grace, HostSilent{Since: worldStart})
	b.step(Heard{Pending{5}}, Release{5}, HostAnswers{})
	told := b.now
	b.waitFor(conf.Grace+conf.Limit+answerMargin, HostSilent{Since: told})
}
