package report

import (
	"encoding/json"
	"reflect"
	"testing"

	"ipoibd/hca"
)

// Only counters of lost frames add to the drops.
func TestDrops(t *testing.T) {
	c := Counters{}
	c.Add("a_", []hca.Counter{
		{Name: "total", Kind: hca.CountTotal, Value: 1},
		{Name: "error", Kind: hca.CountError, Value: 2},
		{Name: "gauge", Kind: hca.CountGauge, Value: 4},
		{Name: "driver", Value: 8},
		{Name: "drop", Kind: hca.CountDrop, Value: 16},
		{Name: "lost", Kind: hca.CountDrop, Value: 32},
	})
	c.Add("a_", []hca.Counter{{Name: "lost", Kind: hca.CountDrop, Value: 64}}) // of another lane
	if got := c.Drops(); got != 16+32+64 {
		t.Errorf("%d drops of %v", got, c)
	}
}

// In JSON, counters are numbers.
func TestCountersInJSON(t *testing.T) {
	text, err := json.Marshal(Counters{"a": {Value: 1<<64 - 1, Kind: hca.CountDrop}, "b": {}})
	if err != nil || string(text) != `{"a":18446744073709551615,"b":0}` {
		t.Errorf("%s, %v", text, err)
	}
	var c Counters
	if err := json.Unmarshal(text, &c); err != nil || !reflect.DeepEqual(c, Counters{"a": {Value: 1<<64 - 1}, "b": {}}) {
		t.Errorf("%v, %v", c, err)
	}
}
