package cuda

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
)

func TestAssign(t *testing.T) {
	var devices []Device
	for i := range 4 {
		devices = append(devices, Device{Ordinal: i, UUID: fmt.Sprintf("GPU-%d%d-x", i/2, i)})
	}
	mig := "MIG-1234"
	for name, tt := range map[string]struct {
		wanted string
		ranks  int
		share  bool
		seats  string // "" for an error
		err    string
	}{
		"all":              {"", 4, false, "GPU-00-x GPU-01-x GPU-12-x GPU-13-x", ""},
		"fewer ranks":      {"", 2, false, "GPU-00-x GPU-01-x", ""},
		"numbers":          {"3,1", 2, false, "GPU-13-x GPU-01-x", ""},
		"blanks":           {"3, 1", 2, false, "GPU-13-x GPU-01-x", ""},
		"UUID":             {"GPU-12-x,0", 2, false, "GPU-12-x GPU-00-x", ""},
		"shortened UUID":   {"gpu-12,GPU-13", 2, false, "", "neither a number nor"},
		"begin of a UUID":  {"GPU-12,GPU-01", 2, false, "GPU-12-x GPU-01-x", ""},
		"MIG":              {mig + ",MIG-5", 2, false, mig + " MIG-5", ""},
		"shared":           {"", 8, true, "GPU-00-x GPU-00-x GPU-01-x GPU-01-x GPU-12-x GPU-12-x GPU-13-x GPU-13-x", ""},
		"shared, uneven":   {"0,1", 3, true, "GPU-00-x GPU-00-x GPU-01-x", ""},
		"too many ranks":   {"", 5, false, "", "5 ranks on 4 GPUs: give each rank a GPU of its own, or let them share with --share-gpus"},
		"too few named":    {"0", 2, false, "", "2 ranks on 1 GPU:"},
		"no such number":   {"4", 1, false, "", "there is no GPU 4; this process sees 4 GPUs"},
		"negative":         {"-1", 1, false, "", "there is no GPU -1"},
		"ambiguous UUID":   {"GPU-1", 1, false, "", "fits several"},
		"no such UUID":     {"GPU-9", 1, false, "", "the UUID of no GPU"},
		"twice":            {"1,GPU-01", 2, false, "", "twice"},
		"neither":          {"first", 1, false, "", "neither a number nor"},
		"empty word":       {"0,,1", 2, false, "", "neither a number nor"},
		"MIG named twice":  {"MIG-1,MIG-1", 2, true, "", "twice"},
		"ranks share MIGs": {"MIG-1", 2, true, "MIG-1 MIG-1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var wanted []string
			if tt.wanted != "" {
				wanted = strings.Split(tt.wanted, ",")
			}
			seats, err := Assign(devices, wanted, tt.ranks, tt.share)
			var got []string
			for _, s := range seats {
				got = append(got, s.Name)
				if (s.Device == nil) != strings.HasPrefix(s.Name, "MIG-") || s.Device != nil && s.Device.UUID != s.Name {
					t.Errorf("seat %+v", s)
				}
			}
			switch {
			case tt.err == "" && (err != nil || !slices.Equal(got, strings.Fields(tt.seats))):
				t.Errorf("%v (%v), want %s", got, err, tt.seats)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("error %v, want one with %q", err, tt.err)
			}
		})
	}
	if _, err := Assign(nil, nil, 1, true); err == nil || !strings.Contains(err.Error(), "no GPU") {
		t.Errorf("without GPUs: %v", err)
	}
}

func TestVisible(t *testing.T) {
	for name, tt := range map[string]struct {
		seats   string
		visible []string
		own     []int
	}{
		"one each":  {"B A", []string{"B,A", "B,A"}, []int{0, 1}},
		"shared":    {"A A B", []string{"A,B", "A,B", "A,B"}, []int{0, 0, 1}},
		"instances": {"MIG-1 MIG-2", []string{"MIG-1", "MIG-2"}, []int{0, 0}},
		"both":      {"A MIG-2 B", []string{"A,B", "MIG-2", "A,B"}, []int{0, 0, 1}},
	} {
		var seats []Seat
		for _, s := range strings.Fields(tt.seats) {
			seats = append(seats, Seat{Name: s})
		}
		if visible, own := Visible(seats); !slices.Equal(visible, tt.visible) || !slices.Equal(own, tt.own) {
			t.Errorf("%s: %q %v, want %q %v", name, visible, own, tt.visible, tt.own)
		}
	}
}

func TestDevicesThatDoNotFit(t *testing.T) {
	good := Device{Name: "NVIDIA H200", Major: 9, Cooperative: true}
	for want, change := range map[string]func(*Device){
		"compute capability 8.0":   func(d *Device) { d.Major = 8 },
		"compute capability 10.0":  func(d *Device) { d.Major = 10 },
		"compute capability 9.1":   func(d *Device) { d.Minor = 1 },
		"no cooperative launches":  func(d *Device) { d.Cooperative = false },
		"GPU 3 (NVIDIA H200) has ": func(d *Device) { d.Ordinal, d.Cooperative = 3, false },
	} {
		d := good
		change(&d)
		if err := d.Fits(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	if err := good.Fits(); err != nil {
		t.Error(err)
	}
}

func TestNarrowTilesAreForFewRows(t *testing.T) {
	for _, tt := range []struct {
		tile  int
		m     int64
		ranks int
		want  string
	}{
		{0, 1 << 20, 1, ""}, {128, 8192, 2, ""}, {32, 64, 1, ""}, {64, 128, 2, ""}, {64, 0, 2, ""}, {64, 129, 2, ""},
		{32, 129, 2, "a tile of 32 columns is for at most 64 rows of a rank; 129 rows over 2 ranks are more"},
		{32, 65, 1, "a tile of 32 columns"},
	} {
		err := CheckTile(tt.tile, tt.m, tt.ranks)
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("tile %d, %d rows, %d ranks: %v, want %q", tt.tile, tt.m, tt.ranks, err, tt.want)
		}
	}
}

func TestSettingsThatCannotBe(t *testing.T) {
	for want, s := range map[string]struct {
		cuda engine.CUDA
		tile int
	}{
		`the mover is "epilogue"`:      {engine.CUDA{Mover: "epilogue"}, 0},
		"a tile of 96 columns":         {engine.CUDA{}, 96},
		"clusters of 4 CTAs":           {engine.CUDA{Cluster: 4}, 0},
		"cannot serve ranks that shar": {engine.CUDA{Mover: "ce", ShareGPUs: true}, 0},
	} {
		if err := CheckSettings(s.cuda, s.tile); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	for _, mover := range []string{"", "sm", "ce"} {
		if err := CheckSettings(engine.CUDA{Mover: mover, Cluster: 2}, 256); err != nil {
			t.Error(err)
		}
	}
}
