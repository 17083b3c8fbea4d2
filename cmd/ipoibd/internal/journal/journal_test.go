package journal

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Unix(1e9, 0)

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// numbers returns the sequence numbers of entries.
func numbers(entries []Entry) (out []uint64) {
	for _, e := range entries {
		out = append(out, e.Seq)
	}
	return out
}

func TestSinceReturnsWhatIsKept(t *testing.T) {
	for _, c := range []struct {
		name        string
		added       int
		since       uint64
		first, last uint64 // 0: none
	}{
		{"empty", 0, 0, 0, 0},
		{"all", 3, 0, 1, 3},
		{"some", 3, 1, 2, 3},
		{"none new", 3, 3, 0, 0},
		{"of the future", 3, 9, 0, 0},
		{"the largest number", 3, math.MaxUint64, 0, 0},
		{"just full", Size, 0, 1, Size},
		{"one pushed out", Size + 1, 0, 2, Size + 1},
		{"around twice", 2*Size + 7, 5, Size + 8, 2*Size + 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := New()
			for range c.added {
				j.Add(Entry{})
			}
			var want []uint64
			for n := c.first; n != 0 && n <= c.last; n++ {
				want = append(want, n)
			}
			if got := numbers(j.Since(c.since)); !reflect.DeepEqual(got, want) {
				t.Errorf("%d entries %v, want %d to %d", len(got), got, c.first, c.last)
			}
		})
	}
}

func TestTimeOfAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, told := New(), time.Now().Add(-time.Minute)
		j.Add(Entry{Time: told})
		time.Sleep(time.Hour)
		j.Add(Entry{})
		if got := j.Since(0); !got[0].Time.Equal(told) || !got[1].Time.Equal(time.Now()) {
			t.Errorf("times %v and %v", got[0].Time, got[1].Time)
		}
	})
}

func TestWaitReturnsWithTheNextEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New()
		j.Add(Entry{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				began := time.Now()
				got, err := j.Wait(t.Context(), 1)
				if err != nil || len(got) != 1 || got[0].Seq != 2 || time.Since(began) != time.Hour {
					t.Errorf("%v, %v after %s", numbers(got), err, time.Since(began))
				}
			})
		}
		time.Sleep(time.Hour)
		j.Add(Entry{})
		wg.Wait()
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got, err := New().Wait(ctx, 0); got != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// A reader that keeps up gets every entry once and in order, even if several writers add them.
func TestReaderSeesAllOfSeveralWriters(t *testing.T) {
	const writers, each = 4, Size / 8
	j := New()
	for range writers {
		go func() { // ends after its entries, which the reader waits for
			for range each {
				j.Add(Entry{})
			}
		}()
	}
	var seq uint64
	for seq < writers*each {
		entries, err := j.Wait(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if seq++; e.Seq != seq {
				t.Fatalf("number %d, want %d", e.Seq, seq)
			}
		}
	}
}

// Times follow the numbers, whichever ladder reports first.
func TestR29TimesFollowTheNumbers(t *testing.T) {
	j := New()
	for _, ms := range []int{5, 3, 7, 7, 6} {
		j.Add(Entry{Time: at(ms)})
	}
	var got []time.Duration
	for _, e := range j.Since(0) {
		got = append(got, e.Time.Sub(epoch)/time.Millisecond)
	}
	if want := []time.Duration{5, 5, 7, 7, 7}; !slices.Equal(got, want) {
		t.Errorf("%d ms, want %d", got, want)
	}
}

func TestDurationsAreSecondsInJSON(t *testing.T) {
	text, err := json.Marshal(Entry{Seq: 1, Scope: "ib0", Kind: KindRecovered, Duration: Seconds(1500 * time.Microsecond), Outage: Seconds(2 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"duration_seconds":0.0015`, `"outage_seconds":2`, `"scope":"ib0"`, `"seq":1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if text, err := json.Marshal(Entry{Kind: KindNote}); err != nil || strings.Contains(string(text), "duration") {
		t.Errorf("a duration where there is none: %s, %v", text, err)
	}
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z_0-9]{0,12}`)
		age := rapid.Int64Range(0, int64(30*24*time.Hour))
		in := Entry{
			Seq: rapid.Uint64().Draw(t, "seq"), Time: time.Unix(0, age.Draw(t, "time")).UTC(),
			Scope: word.Draw(t, "scope"), Kind: word.Draw(t, "kind"), Rung: word.Draw(t, "rung"),
			Reason: word.Draw(t, "reason"), Text: rapid.String().Draw(t, "text"),
			Duration: Seconds(age.Draw(t, "duration")), Outage: Seconds(age.Draw(t, "outage")),
		}
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out Entry
		if err := json.Unmarshal(text, &out); err != nil || out != in {
			t.Fatalf("%+v, %v\nwant %+v", out, err, in)
		}
	})
}

func TestNoDurationsInJSON(t *testing.T) {
	for _, text := range []string{`{"duration_seconds":"1s"}`, `{"outage_seconds":[]}`, `[]`} {
		var e Entry
		if err := json.Unmarshal([]byte(text), &e); err == nil {
			t.Errorf("%s is taken for %+v", text, e)
		}
	}
}

// A journal that continues another one keeps its numbers, so that readers continue where they stopped.
func TestRestore(t *testing.T) {
	old := New()
	for range Size + 5 {
		old.Add(Entry{Scope: "ib0", Kind: KindNote})
	}
	j := New()
	j.Restore(old.Since(0))
	j.Add(Entry{Scope: "ib0", Kind: KindNote, Text: "new"})
	if got := j.Since(Size + 4); len(got) != 2 || got[0].Seq != Size+5 || got[1].Seq != Size+6 || got[1].Text != "new" {
		t.Errorf("%+v", got)
	}
	if got := j.Since(0); len(got) != Size || got[0].Seq != 7 {
		t.Errorf("%d entries from %d on", len(got), got[0].Seq)
	}
}
