package neigh

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAlarms compares the heap with a map.
func TestAlarms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q alarms[int]
		var all [8]alarm[int]
		model := map[int]int{} // which: seconds
		at := func(s int) time.Time { return epochTime.Add(time.Duration(s) * time.Second) }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i, s := rapid.IntRange(0, 7).Draw(t, "alarm"), rapid.IntRange(0, 20).Draw(t, "second")
				q.set(&all[i], i, at(s))
				model[i] = s
			},
			"stop": func(t *rapid.T) {
				i := rapid.IntRange(0, 7).Draw(t, "alarm")
				q.stop(&all[i])
				delete(model, i)
			},
			"due": func(t *rapid.T) {
				s := rapid.IntRange(0, 20).Draw(t, "now")
				for i, ok := q.due(at(s)); ok; i, ok = q.due(at(s)) {
					if when, armed := model[i]; !armed || when > s {
						t.Fatalf("alarm %d rang at %d, set for %d, %v", i, s, when, armed)
					}
					delete(model, i)
				}
			},
			"": func(t *rapid.T) { checkNext(t, &q, model, at) },
		})
	})
}

func checkNext(t *rapid.T, q *alarms[int], model map[int]int, at func(int) time.Time) {
	var want time.Time
	for _, s := range model {
		if want.IsZero() || at(s).Before(want) {
			want = at(s)
		}
	}
	if got := q.next(); q.Len() != len(model) || !got.Equal(want) {
		t.Fatalf("%d alarms, next %v; want %d, next %v", q.Len(), got, len(model), want)
	}
}
