//! Ten schemas, and answers of Qwen2.5-Coder-0.5B under each of them.
#![allow(dead_code)] // a test file that includes this may need only one of them

use serde_json::{Value, json};

/// Ten schemas as programs send them.
pub fn schemas() -> [Value; 10] {
    let object = |properties: Value| {
        let names: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
        json!({
            "type": "object", "properties": properties, "required": names, "additionalProperties": false,
        })
    };
    let text = |most: u32| json!({ "type": "string", "maxLength": most });
    let list =
        |items: Value| json!({ "type": "array", "items": items, "minItems": 1, "maxItems": 4 });
    let score = json!({ "type": "integer", "minimum": 0, "maximum": 100 });
    [
        object(json!({ "answer": text(80) })),
        object(json!({ "yes": { "type": "boolean" }, "reason": text(120) })),
        object(json!({ "mood": { "enum": ["good", "bad", "neither"] } })),
        object(json!({ "name": text(40), "age": score })),
        object(json!({ "cities": list(text(30)) })),
        object(
            json!({ "steps": list(object(json!({ "title": text(40), "done": { "type": "boolean" } }))) }),
        ),
        object(json!({ "low": { "type": "number" }, "high": { "type": "number" } })),
        object(json!({ "value": { "anyOf": [{ "type": "null" }, score, text(20)] } })),
        object(
            json!({ "person": object(json!({ "name": text(40), "home": object(json!({ "city": text(30) })) })) }),
        ),
        list(score.clone()),
    ]
}

/// Answers under each of [`schemas`], in their order, as the model has written them.
pub const ANSWERS: [[&str; 3]; 10] = [
    [
        "{\n  \"answer\": \"The weather in Rome is very beautiful, with lots of flowers and beautiful plants\" \n}",
        "{\n  \"answer\": \"For the weather in Rome, it is currently experiencing a mild and sunny day with \"\n\n}",
        "{\n  \"answer\": \"The weather in Rome is described as partly cloudy with some rainfall. The city's\" \n  }",
    ],
    [
        "{\n  \"yes\": true,\n  \"reason\": \"The current temperature in Rome is 22 degrees Celsius (66 Kelvin). It is currently on average 12.7 degrees Celsius (50.6\" \n}",
        "{\n  \"yes\": true,\n  \"reason\": \"Weather in Rome is generally mild with clear skies and mild temperatures. It is safe for people to enjoy the city and be\"\n}",
        "{\n  \"yes\": false,\n  \"reason\": \"The city does not have a weather forecast for Rome. The city is located in Italy and does not have a fully developed or \" \n}",
    ],
    [
        "{\n  \"mood\": \"good\"\n}",
        "{\n  \"mood\": \"neither\"\n}",
        "{\n  \"mood\": \"good\"\n}",
    ],
    [
        "{\n  \"name\": \"Rome\",\n  \"age\": 52\n}",
        "{\n  \"name\": \"Rome\",\n  \"age\": 27\n}",
        "{\n  \"name\": \" Rome\",\n  \"age\": 29\n}",
    ],
    [
        "{\n  \"cities\": [\n    \"Rome\"\n  ]\n}",
        "{\n  \"cities\": [\n    \"Rome\",\n    \"Florence\",\n    \"Madrid\",\n    \"Parma\"\n  ]\n}",
        "{\n  \"cities\": [\n    \"Rome\"\n  ]\n}",
    ],
    [
        "{\n  \"steps\": [\n    {\n      \"title\": \"weather in Rome\",\n      \"done\": false\n    },\n    {\n      \"title\": \"day\",\n      \"done\": true\n    },\n    {\n      \"title\": \"weather in Rome\",\n      \"done\": false\n    },\n    {\n      \"title\": \"day\",\n      \"done\": true\n    }\n  ]\n}",
        "{\n  \"steps\": [\n    {\n      \"title\": \"Morning\",\n      \"done\": false\n    },\n    {\n      \"title\": \"Afternoon\",\n      \"done\": false\n    },\n    {\n      \"title\": \"Evening\",\n      \"done\": false\n    },\n    {\n      \"title\": \"Night\",\n      \"done\": false\n    }\n  ]\n}",
        "{\n  \"steps\": [\n    {\n      \"title\": \"Morning\",\n      \"done\": true\n    },\n    {\n      \"title\": \"Late Morning\",\n      \"done\": true\n    },\n    {\n      \"title\": \"Evening\",\n      \"done\": true\n    },\n    {\n      \"title\": \"Night\",\n      \"done\": true\n    }\n  ]\n}",
    ],
    [
        "{\n  \"low\": 17.4,\n  \"high\": 22.2\n}",
        "{\n  \"low\": 0,\n  \"high\": 250000000000000000000000000000000000}",
        "{\n  \"low\": 18.3,\n  \"high\": 21.898511032679985524307481550558}",
    ],
    [
        "{\n  \"value\": \"Sunny and warm\"\n}",
        "{\n  \"value\": \" rainy\"\n}",
        "{\n  \"value\": \"晴朗\"\n}",
    ],
    [
        "{\n  \"person\": {\n    \"name\": \"Qwen\",\n    \"home\": {\n      \"city\": \"Rome\"\n    }\n  }\n}",
        "{\n  \"person\": {\n    \"name\": \"Qwen\",\n    \"home\": {\n      \"city\": \"Rome\"\n    }\n  }\n}",
        "{\n  \"person\": {\n    \"name\": \"Qwen\",\n    \"home\": {\n      \"city\": \"Rome\"\n    }\n  }\n}",
    ],
    [
        "[\n  40,\n  14,\n  10,\n  11\n]",
        "[\n\n    20,\n    0,\n    59,\n    32\n]",
        "[\n    20,\n    5,\n    10,\n    15\n]",
    ],
];
