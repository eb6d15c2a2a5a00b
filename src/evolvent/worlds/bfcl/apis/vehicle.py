"""The vehicle: engine, fuel, doors, climate, lights, brakes, cruise control, tires and navigation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from evolvent.trajectory import Json, JsonObject
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Vehicle"]

_TANK_GALLONS, _MILES_PER_GALLON = 50, 20.0
_FULL_FORCE_N = 1000.0
_SLOPE_DEGREES, _PARKING_FORCE_N = 10.0, 500.0
_ZIP_CODES = {
    "Rivermist": "83214",
    "Stonebrook": "74532",
    "Maplecrest": "56108",
    "Silverpine": "62947",
    "Shadowridge": "71354",
    "Sunset Valley": "83462",
    "Oakendale": "47329",
    "Willowbend": "52013",
    "Crescent Hollow": "69238",
    "Autumnville": "51479",
    "San Francisco": "94016",
}
_DISTANCES = {
    frozenset(pair.split("-")): km
    for pair, km in {
        "83214-74532": 750.0,
        "56108-62947": 320.0,
        "71354-83462": 450.0,
        "47329-52013": 290.0,
        "69238-51479": 630.0,
        "94016-83214": 980.0,
        "94016-94704": 600.0,
        "94704-08540": 2550.0,
        "94016-08540": 1950.0,
        "62947-47329": 1053.0,
        "94016-62947": 780.0,
        "74532-94016": 880.0,
    }.items()
}
_TIRES = ("frontLeftTirePressure", "frontRightTirePressure", "rearLeftTirePressure", "rearRightTirePressure")
_STATUS_FIELDS = {
    "fuel": {"fuelLevel": "fuelLevel"},
    "battery": {"batteryVoltage": "batteryVoltage"},
    "doors": {"doorStatus": "doorStatus"},
    "climate": {
        "currentACTemperature": "acTemperature",
        "fanSpeed": "fanSpeed",
        "climateMode": "acMode",
        "humidityLevel": "humidityLevel",
    },
    "headlights": {"headlightStatus": "headLightStatus"},
    "parkingBrake": {"parkingBrakeStatus": "parkingBrakeStatus"},
    "brakePedal": {"brakePedalStatus": "brakePedalStatus"},
    "engine": {"engineState": "engineState"},
}


class Vehicle(Api):
    """`VehicleControlAPI`. The forces on the brakes and the slope are not compared, as in the data set's class."""

    wire = "VehicleControlAPI"
    document = "vehicle_control.json"
    seed = 141053
    defaults: ClassVar[Mapping[str, object]] = {
        "fuelLevel": 0.0,
        "batteryVoltage": 12.6,
        "engineState": "stopped",
        "remainingUnlockedDoors": 4,
        "doorStatus": {
            "driver": "unlocked",
            "passenger": "unlocked",
            "rear_left": "unlocked",
            "rear_right": "unlocked",
        },
        "acTemperature": 25.0,
        "fanSpeed": 50,
        "acMode": "auto",
        "humidityLevel": 50.0,
        "headLightStatus": "off",
        "parkingBrakeStatus": "released",
        "brakePedalStatus": "released",
        "distanceToNextVehicle": 50.0,
        "cruiseStatus": "inactive",
        "destination": "None",
        "frontLeftTirePressure": 32.0,
        "frontRightTirePressure": 32.0,
        "rearLeftTirePressure": 30.0,
        "rearRightTirePressure": 30.0,
    }

    def __init__(self, config: JsonObject, padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        # Counted anew: some items say another number than the doors show.
        self._count_doors()
        self._parking_force = config.get("parkingBrakeForce", 0.0)
        self._slope = config.get("slopeAngle", 0.0)
        self._pedal_force = config.get("brakePedalForce", 0.0)

    def _count_doors(self) -> None:
        locked = sum(status == "locked" for status in self.state["doorStatus"].values())
        self.state["remainingUnlockedDoors"] = 4 - locked

    def _engine(self) -> Json:
        return {name: self.state[name] for name in ("engineState", "fuelLevel", "batteryVoltage")}

    def _start(self, ignition_mode: Any) -> Json:
        if ignition_mode == "STOP":
            self.state["engineState"] = "stopped"
            return self._engine()
        doors = [door for door, status in self.state["doorStatus"].items() if status == "unlocked"]
        if self.state["remainingUnlockedDoors"] > 0:
            return refuse(f"lock the doors first: {', '.join(doors)}")
        if self.state["brakePedalStatus"] != "pressed" or self._pedal_force != _FULL_FORCE_N:
            return refuse("press the brake pedal down first")
        if ignition_mode != "START":
            return refuse(f"{ignition_mode} is no ignition mode: START, STOP")
        self.state["engineState"] = "running"
        return self._engine()

    def _fill(self, amount: Any) -> Json:
        if amount < 0:
            return refuse("the amount must be at least 0")
        if self.state["fuelLevel"] + amount > _TANK_GALLONS:
            return refuse(f"the tank holds {_TANK_GALLONS} gallons")
        self.state["fuelLevel"] += amount
        return {"fuelLevel": self.state["fuelLevel"]}

    def _lock(self, unlock: Any, doors: Any) -> Json:
        status, door_status = "unlocked" if unlock else "locked", self.state["doorStatus"]
        for door in doors:
            if door_status[door] != status:
                door_status[door] = status
                self.state["remainingUnlockedDoors"] += 1 if unlock else -1
        return {"lockStatus": status, "remainingUnlockedDoors": self.state["remainingUnlockedDoors"]}

    def _climate(self, temperature: Any, unit: Any = "celsius", fan_speed: Any = 50, mode: Any = "auto") -> Json:
        if not 0 <= fan_speed <= 100:
            return refuse("the fan's speed is 0 to 100")
        celsius = (temperature - 32) * 5 / 9 if unit == "fahrenheit" else temperature
        self.state |= {"acTemperature": celsius, "fanSpeed": fan_speed, "acMode": mode}
        # The answer repeats the number that was given, whatever its unit.
        humidity = self.state["humidityLevel"]
        return {"currentACTemperature": temperature, "climateMode": mode, "humidityLevel": humidity}

    def _outside_temperature(self) -> Json:
        temperature = self._random.uniform(-10.0, 40.0)
        return {**(self._padding.days if self._padding else {}), "outsideTemperature": temperature}

    def _outside_elsewhere(self) -> Json:
        return {"error": 404}

    def _headlights(self, mode: Any) -> Json:
        if mode not in ("on", "off", "auto"):
            return refuse(f"{mode} is no mode of the headlights: on, off, auto")
        self.state["headLightStatus"] = "on" if mode == "on" else "off"
        return {"headlightStatus": self.state["headLightStatus"]}

    def _status(self, option: Any) -> Json:
        fields = _STATUS_FIELDS.get(option)
        if fields is None:
            return refuse(f"{option} is nothing that can be shown")
        status: dict[str, Json] = {"metadata": self._padding.prose("car", 6503)} if self._padding else {}
        status |= {name: self.state[state_name] for name, state_name in fields.items()}
        if option == "parkingBrake":
            status |= {"parkingBrakeForce": self._parking_force, "slopeAngle": self._slope}
        if option == "brakePedal":
            status["brakePedalForce"] = self._pedal_force
        return status

    def _parking_brake(self, mode: Any) -> Json:
        if mode not in ("engage", "release"):
            return refuse(f"{mode} is no mode of the brake: engage, release")
        status = "engaged" if mode == "engage" else "released"
        self.state["parkingBrakeStatus"] = status
        self._parking_force = _PARKING_FORCE_N if mode == "engage" else 0.0
        self._slope = _SLOPE_DEGREES
        padding = {"parkingBrakeInstruction": self._padding.prose("brake", 9710)} if self._padding else {}
        return {
            **padding,
            "parkingBrakeStatus": status,
            "_parkingBrakeForce": self._parking_force,
            "_slopeAngle": self._slope,
        }

    def _press(self, position: Any) -> Json:
        if not 0 <= position <= 1:
            return refuse("the pedal's position is 0 to 1")
        self._pedal_force = float(position * _FULL_FORCE_N)
        self.state["brakePedalStatus"] = "pressed" if position else "released"
        return {"brakePedalStatus": self.state["brakePedalStatus"], "brakePedalForce": self._pedal_force}

    def _release(self) -> Json:
        return self._press(0)

    def _cruise(self, speed: Any, activate: Any, distance: Any) -> Json:
        speed, distance = float(speed), float(distance)
        if self.state["engineState"] == "stopped":
            return refuse("start the engine first")
        self.state["distanceToNextVehicle"] = distance
        if activate and (not 0 <= speed <= 120 or speed % 5):
            return refuse("the speed is 0 to 120, in steps of 5")
        self.state["cruiseStatus"] = "active" if activate else "inactive"
        return {
            "cruiseStatus": self.state["cruiseStatus"],
            "currentSpeed": speed,
            "distanceToNextVehicle": distance,
        }

    def _speed(self) -> Json:
        return {"currentSpeed": self._random.uniform(0.0, 120.0)}

    def _log(self, messages: Any) -> Json:
        return {"log": messages}

    def _is_feasible(self, distance: Any) -> Json:
        return {"canDrive": not self.state["fuelLevel"] * _MILES_PER_GALLON < distance}

    def _to_gallons(self, liter: Any) -> Json:
        return {"gallon": liter * 0.264172}

    def _to_liters(self, gallon: Any) -> Json:
        return {"liter": gallon * 3.78541}

    def _distance(self, start: Any, end: Any) -> Json:
        km = _DISTANCES.get(frozenset((start, end)))
        result = refuse(f"nothing is known of the way from {start} to {end}") if km is None else {"distance": km}
        return {**result, **({"intermediaryCities": self._padding.towns} if self._padding else {})}

    def _zip_code(self, city: Any) -> Json:
        return {"zipcode": _ZIP_CODES.get(city, "00000")}

    def _navigate(self, destination: Any) -> Json:
        self.state["destination"] = destination
        return {"status": "on the way to " + destination}

    def _tires(self) -> Json:
        pressures = {name: self.state[name] for name in _TIRES}
        healthy = 30 <= sum(pressures.values()) / 4 <= 35
        info = {"manual": self._padding.prose("car", 6503)} if self._padding else {}
        return {**pressures, "healthy_tire_pressure": healthy, "car_info": info}

    def _tire_shop(self) -> Json:
        return {"shopLocation": "456 Oakwood Avenue, Rivermist, 83214"}

    operations = index_by_name(
        operation("activateParkingBrake(mode)", _parking_brake),
        operation("adjustClimateControl(temperature, unit=, fanSpeed=, mode=)", _climate),
        operation("check_tire_pressure()", _tires),
        operation("displayCarStatus(option)", _status),
        operation("display_log(messages)", _log),
        operation("estimate_distance(cityA, cityB)", _distance),
        operation("estimate_drive_feasibility_by_mileage(distance)", _is_feasible),
        operation("fillFuelTank(fuelAmount)", _fill),
        operation("find_nearest_tire_shop()", _tire_shop),
        operation("gallon_to_liter(gallon)", _to_liters),
        operation("get_current_speed()", _speed),
        operation("get_outside_temperature_from_google()", _outside_temperature),
        operation("get_outside_temperature_from_weather_com()", _outside_elsewhere),
        operation("get_zipcode_based_on_city(city)", _zip_code),
        operation("liter_to_gallon(liter)", _to_gallons),
        operation("lockDoors(unlock, door)", _lock),
        operation("pressBrakePedal(pedalPosition)", _press),
        operation("releaseBrakePedal()", _release),
        operation("setCruiseControl(speed, activate, distanceToNextVehicle)", _cruise),
        operation("setHeadlights(mode)", _headlights),
        operation("set_navigation(destination)", _navigate),
        operation("startEngine(ignitionMode)", _start),
    )
