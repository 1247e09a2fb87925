package profile

import (
	"encoding/json"
	"strings"
)

// firefoxVersion is that of the processed profile format which is written:
// threads share their tables in it.
const firefoxVersion = 61

// firefoxFile is a profile in the processed format of the Firefox Profiler.
// Tables are lists of equal length, one a column, and refer to each other by
// index. Times are in milliseconds since meta.startTime.
type firefoxFile struct {
	Meta    firefoxMeta     `json:"meta"`
	Libs    []firefoxLib    `json:"libs"`
	Pages   []struct{}      `json:"pages"`
	Shared  *firefoxTables  `json:"shared,omitempty"`
	Threads []firefoxThread `json:"threads"`
}

type firefoxMeta struct {
	Version        int               `json:"version"`
	Preprocessed   int               `json:"preprocessedProfileVersion"`
	Interval       float64           `json:"interval"`  // ms
	StartTime      float64           `json:"startTime"` // ms since 1970
	ProcessType    int               `json:"processType"`
	Product        string            `json:"product"`
	OSCPU          string            `json:"oscpu,omitempty"`
	LogicalCPUs    int               `json:"logicalCPUs,omitempty"`
	Stackwalk      int               `json:"stackwalk"`
	Debug          bool              `json:"debug"`
	Symbolicated   bool              `json:"symbolicated"`
	OneStackType   bool              `json:"usesOnlyOneStackType"`
	NotOnSearchfox bool              `json:"sourceCodeIsNotOnSearchfox"`
	Categories     []firefoxCategory `json:"categories"`
	MarkerSchema   []struct{}        `json:"markerSchema"`
	SampleUnits    map[string]string `json:"sampleUnits,omitempty"`
	Visible        []int             `json:"initialVisibleThreads,omitempty"`
	Extra          []firefoxExtra    `json:"extra,omitempty"`
}

type firefoxCategory struct {
	Name          string   `json:"name"`
	Color         string   `json:"color"`
	Subcategories []string `json:"subcategories"`
}

// firefoxExtra is a section of facts about the recording.
type firefoxExtra struct {
	Label   string        `json:"label"`
	Entries []firefoxFact `json:"entries"`
}

type firefoxFact struct {
	Label  string `json:"label"`
	Format string `json:"format"`
	Value  any    `json:"value"`
}

type firefoxLib struct {
	Arch       *string `json:"arch"`
	Name       string  `json:"name"`
	Path       string  `json:"path"`
	DebugName  string  `json:"debugName"`
	DebugPath  string  `json:"debugPath"`
	BreakpadID string  `json:"breakpadId"`
	CodeID     *string `json:"codeId"` // build ID
}

// firefoxTables are what stacks are made of. In older versions each thread
// has its own.
type firefoxTables struct {
	StackTable    firefoxStacks    `json:"stackTable"`
	FrameTable    firefoxFrames    `json:"frameTable"`
	FuncTable     firefoxFuncs     `json:"funcTable"`
	ResourceTable firefoxResources `json:"resourceTable"`
	NativeSymbols firefoxSymbols   `json:"nativeSymbols"`
	Sources       firefoxSources   `json:"sources"`
	StringArray   []string         `json:"stringArray"`
	StringTable   []string         `json:"stringTable,omitempty"` // its name in old versions
}

type firefoxStacks struct {
	Length int    `json:"length"`
	Frame  []int  `json:"frame"`
	Prefix []*int `json:"prefix"` // the caller's stack
}

type firefoxFrames struct {
	Length       int       `json:"length"`
	Address      []float64 `json:"address"` // in its library, or -1
	InlineDepth  []int     `json:"inlineDepth"`
	Category     []*int    `json:"category"`
	Subcategory  []*int    `json:"subcategory"`
	Func         []int     `json:"func"`
	NativeSymbol []*int    `json:"nativeSymbol"`
	WindowID     []*int    `json:"innerWindowID"`
	Line         []*int    `json:"line"`
	Column       []*int    `json:"column"`
}

type firefoxFuncs struct {
	Length     int    `json:"length"`
	Name       []int  `json:"name"` // of the strings
	IsJS       []bool `json:"isJS"`
	ForJS      []bool `json:"relevantForJS"`
	Resource   []int  `json:"resource"` // -1 for none
	Source     []*int `json:"source"`
	FileName   []*int `json:"fileName,omitempty"` // in versions without sources; of the strings
	LineNumber []*int `json:"lineNumber"`
	Column     []*int `json:"columnNumber"`
}

type firefoxResources struct {
	Length int    `json:"length"`
	Lib    []*int `json:"lib"`
	Name   []int  `json:"name"`
	Host   []*int `json:"host"`
	Type   []int  `json:"type"` // 1 is a library
}

type firefoxSymbols struct {
	Length  int   `json:"length"`
	Lib     []int `json:"libIndex"`
	Address []int `json:"address"`
	Name    []int `json:"name"`
	Size    []int `json:"functionSize"`
}

type firefoxSources struct {
	Length      int       `json:"length"`
	ID          []*string `json:"id"`
	Filename    []int     `json:"filename"`
	StartLine   []int     `json:"startLine"`
	StartColumn []int     `json:"startColumn"`
	MapURL      []*int    `json:"sourceMapURL"`
}

type firefoxThread struct {
	Name         string         `json:"name"`
	IsMainThread bool           `json:"isMainThread"`
	ProcessName  string         `json:"processName"`
	ProcessType  string         `json:"processType"`
	PID          firefoxID      `json:"pid"`
	TID          firefoxID      `json:"tid"`
	Registered   float64        `json:"registerTime"`
	Unregistered *float64       `json:"unregisterTime"`
	Started      float64        `json:"processStartupTime"`
	Shutdown     *float64       `json:"processShutdownTime"`
	Paused       []struct{}     `json:"pausedRanges"`
	ShowMarkers  bool           `json:"showMarkersInTimeline"`
	Markers      firefoxMarkers `json:"markers"`
	Samples      firefoxSamples `json:"samples"`
}

// firefoxID is a process or thread, which is a text or in older versions a
// number.
type firefoxID string

func (id *firefoxID) UnmarshalJSON(b []byte) error {
	if text := strings.Trim(string(b), `"`); len(text) < len(b) {
		return json.Unmarshal(b, (*string)(id))
	} else if text != "null" {
		*id = firefoxID(text)
	}
	return nil
}

// firefoxMarkers is a table without entries.
type firefoxMarkers struct {
	Length    int       `json:"length"`
	Data      []any     `json:"data"`
	Name      []int     `json:"name"`
	StartTime []float64 `json:"startTime"`
	EndTime   []float64 `json:"endTime"`
	Phase     []int     `json:"phase"`
	Category  []int     `json:"category"`
}

type firefoxSamples struct {
	Length     int       `json:"length"`
	Stack      []*int    `json:"stack"`
	Time       []float64 `json:"time,omitempty"`
	TimeDeltas []float64 `json:"timeDeltas,omitempty"`
	Weight     []float64 `json:"weight"` // null stands for 1 each
	WeightType string    `json:"weightType"`
	CPU        []float64 `json:"threadCPUDelta,omitempty"` // time on the CPU since the sample before, ns
}
